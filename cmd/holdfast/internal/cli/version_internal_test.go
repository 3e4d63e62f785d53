package cli

import (
	"runtime/debug"
	"testing"
)

// A released command prints the version of its release, and no other build does.
func TestVersionOf(t *testing.T) {
	t.Parallel()
	const next = "0.1.0-dev"
	for build, want := range map[string]string{
		"v0.1.0": "0.1.0", "v1.20.3": "1.20.3", "v0.2.0-rc.1": "0.2.0-rc.1",
		"": next, "(devel)": next, "v0.1.0+dirty": next, "v0.0.0-20261126191550-41d3697e0123": next,
		"v0.1.1-0.20261126191550-41d3697e0123": next, "v0.2.0-rc.1.0.20261126191550-41d3697e0123": next, "v0.1.1-0.20261126191550-41d3697e0123+dirty": next,
	} {
		if got := versionOf(&debug.BuildInfo{Main: debug.Module{Version: build}}); got != want {
			t.Errorf("a build of %q has the version %s, want %s", build, got, want)
		}
	}
	if got := versionOf(nil); got != next {
		t.Errorf("a build without information has the version %s", got)
	}
}
