//go:build unix

package runner_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/verify/runner"
)

// members returns the IDs of the voting nodes, by their names, as a node reports them.
func members(t *testing.T, url string) map[string]string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.Replace(url, "holdfast://", "http://", 1)+"/v1/cluster", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer res.Body.Close()
	var status struct {
		Members []struct {
			ID, Name, State string
			Learner         bool
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&status); err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	for _, m := range status.Members {
		if m.State == "running" && !m.Learner {
			out[m.Name] = m.ID
		}
	}
	return out
}

// A node of our server loses its data while the workers use all three nodes. It is removed from
// the cluster and joins it as a new member; no lock is granted twice.
func TestNodeIsWiped(t *testing.T) {
	t.Parallel()
	servers, err := runner.StartServers(t.Context(), "holdfast", programs(t, "holdfast"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := servers.End(); err != nil {
			t.Error(err)
		}
	})
	three := func() map[string]string {
		var all map[string]string
		leasetest.Eventually(t, "there are three members", func() bool { all = members(t, servers.URL()); return len(all) == 3 })
		return all
	}
	before := three()
	var r outcome
	wiped, replaced := 0, 0
	for try := 1; wiped == 0; try++ {
		// The plan of this seed begins with a wiped node, for which a busy machine may come too late.
		r = runAndJudge(t, runner.Config{Servers: servers, Worker: workers(), For: 3 * time.Second, Seed: 42, Profile: runner.Torture, TTL: 2 * time.Second})
		for _, e := range r.faults {
			if strings.HasPrefix(e.Text, "server wiped, ") {
				wiped++
			}
		}
		if t.Failed() || try == 4 {
			break
		}
	}
	after := three()
	for name, id := range before {
		if after[name] != id {
			replaced++
		}
	}
	if wiped != 1 || replaced != 1 {
		t.Errorf("%d wiped, %d replaced: the members are %v, and were %v", wiped, replaced, after, before)
	}
	if r.Counts.Grants == 0 {
		t.Errorf("nothing was granted: %+v", r.Counts)
	}
}
