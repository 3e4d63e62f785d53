package pglock_test

import (
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// C3, F17: the server crashes, and loses the last numbers of the sequence, as it may. Tokens grow
// all the same.
func TestAdvisoryTokensAfterACrash(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	b := openAdvisory(t, advisoryURL(s, "postgres", s.Addr()))
	id := leasetest.Session(t, b, time.Hour, nil)
	for _, name := range []string{"a", "b", "c"} {
		leasetest.Take(t, b, leasetest.Ask(name, id))
	}
	last := leasetest.Take(t, b, leasetest.Ask("n", id))
	s.Kill()
	s.Start()
	s.Exec(`SELECT setval('holdfast_advisory.tokens', 1)`)
	next := leasetest.Take(t, b, leasetest.Ask("n", leasetest.Session(t, b, time.Hour, nil)))
	if next <= last {
		t.Errorf("token %d after %d and a crash", next, last)
	}
}

// C2: the server goes back to a copy of its data folder.
func TestAdvisoryTokensOfARestoredServer(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	leasetest.Restored(t, func() backend.Backend { return openAdvisory(t, advisoryURL(s, "postgres", s.Addr())) }, s.Copy)
}
