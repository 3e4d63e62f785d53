package cli_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testserver"
)

// The doctor distinguishes all nodes of Redlock from a majority of them, and that from none.
func TestDoctor(t *testing.T) {
	t.Parallel()
	const three = 3
	nodes := testserver.RedisNodes(t, three)
	url := "redlock://" + testserver.RedisAddrs(nodes) + "?quarantine=off&timeout=5s"
	says := func(health string, status int, found string) {
		t.Helper()
		var got result
		await(t, time.Minute, health, func() bool { // a slow machine is degraded, too
			got = run(t, command(t, url, "doctor", "--json"))
			return strings.Contains(got.out, `"`+health+`"`)
		})
		var v struct{ Found []string }
		if err := json.Unmarshal([]byte(got.out), &v); err != nil || got.status != status {
			t.Errorf("%v: %+v, want status %d", err, got, status)
		}
		if !strings.Contains(strings.Join(v.Found, "\n"), found) {
			t.Errorf("found %q, want %q", v.Found, found)
		}
	}
	says("healthy", 0, "")
	nodes[2].Kill()
	says("degraded", 1, "node 3 of 3 is unavailable")
	if got := run(t, command(t, url, "doctor")); got.status != 1 || !strings.Contains(got.out, "degraded") || !strings.Contains(got.out, "node 3 of 3 is unavailable") {
		t.Errorf("%+v", got)
	}
	nodes[1].Kill()
	says("unhealthy", 74, "")
	if got := run(t, command(t, url, "doctor")); got.status != 74 || !strings.Contains(got.out, "unhealthy") || !strings.Contains(got.stderr, "unavailable") {
		t.Errorf("%+v", got)
	}
}
