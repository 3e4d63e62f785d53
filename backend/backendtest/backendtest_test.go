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
	ids      []string // of the contract, each once
	cases    []string
	failures []string
}

// holders is how many share a lock that is broken: enough for several steps of a break, and few
// enough to try every broken backend under the race detector.
const holders = 100

// judge runs every case against a store of its own that the hooks break. Time is simulated: a
// case that waits for ever takes no longer than the others.
func judge(t *testing.T, mutate func() *hooks) verdict {
	t.Helper()
	var v verdict
	for _, c := range backendtest.Cases() {
		if c.Restarts {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			store, h := memlock.NewStore(), mutate()
			r := c.Run(t.Context(), backendtest.Harness{
				Open:    func(backendtest.T) backend.Backend { return mutated{store.Open(), h} },
				TTL:     time.Minute,
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
	v.ids = slices.Compact(slices.Sorted(slices.Values(v.ids)))
	return v
}

// TestMutants checks that the suite catches backends that break one rule each, and reports
// which cases did.
func TestMutants(t *testing.T) {
	t.Parallel()
	for _, m := range mutants() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			v := judge(t, m.hooks)
			t.Logf("%q is caught by %d cases: %s", m.name, len(v.cases), strings.Join(v.cases, ", "))
			if len(v.ids) == 0 {
				t.Fatal("not caught")
			}
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
