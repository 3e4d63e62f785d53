package cli_test

import (
	"strings"
	"testing"
)

// The processes beside a command run before most packages are initialized, which would take longer than all else.
func TestHelpersStartEarly(t *testing.T) {
	t.Parallel()
	for _, helper := range []string{"internal-watchdog", "internal-exec"} { // without input, and without arguments: both end
		cmd := command(t, "", helper)
		cmd.Env = append(cmd.Env, "GODEBUG=inittrace=1")
		r := run(t, cmd)
		if n := strings.Count(r.stderr, "\ninit "); n < 5 || n > 60 {
			t.Errorf("%s: %d packages were initialized:\n%s", helper, n, r.stderr)
		}
	}
}
