package backendtest_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// verdict is what the suite found.
type verdict struct {
	ids      []string // of the contract
	cases    []string
	failures []string
}

// holders is how many share a lock that is broken: enough for several steps of a break, and few
// enough to try every broken backend under the race detector.
const holders = 100

// judge runs cases against a store of its own that the hooks break: all cases, or those of some IDs, each
// until one has failed. Time is simulated: a case that waits for ever takes no longer than the others.
func judge(t *testing.T, mutate func() *hooks, ids ...string) verdict {
	t.Helper()
	var v verdict
	for _, c := range backendtest.Cases() {
		if c.Restarts || len(ids) > 0 && (!slices.Contains(ids, c.ID) || slices.Contains(v.ids, c.ID)) {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			store, h := memlock.NewStore(), mutate()
			r := c.Run(t.Context(), backendtest.Harness{
				Open:    func(backendtest.T) backend.Backend { return mutated{store.Open(), h} },
				TTL:     25 * time.Second, // under load a case waits for half of it
				Slack:   10 * time.Millisecond,
				Holders: holders,
			})
			if len(r.Failures) > 0 {
				v.ids = append(v.ids, c.ID)
				v.cases = append(v.cases, c.ID+"/"+c.Name)
				v.failures = append(v.failures, r.Failures...)
			}
		})
	}
	return v
}

// TestMutants checks that the suite catches backends that break one rule each, by a case of each ID that has to find
// it.
func TestMutants(t *testing.T) {
	t.Parallel()
	for _, m := range mutants() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			v := judge(t, m.hooks, m.caught...)
			t.Logf("%q is caught by %s", m.name, strings.Join(v.cases, ", "))
			for _, id := range m.caught {
				if !slices.Contains(v.ids, id) {
					t.Errorf("not caught by any case of %s", id)
				}
			}
			for _, f := range v.failures {
				if !strings.Contains(f, "rule: ") {
					t.Errorf("a failure without its rule: %s", f)
				}
			}
		})
	}
}

// TestUnbroken checks that the suite finds no fault in the backend that the mutants are made
// of.
func TestUnbroken(t *testing.T) {
	t.Parallel()
	for _, f := range judge(t, func() *hooks { return &hooks{} }).failures {
		t.Error(f)
	}
}
