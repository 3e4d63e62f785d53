package pglock_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// The server has room for a number of locks (max_locks_per_transaction) and refuses the next. The
// caller gets the error, and the session loses nothing. When locks are released there is room
// again.
func TestAdvisoryLockTableFull(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const most = 100_000
	s := testserver.Postgres(t, "max_locks_per_transaction=10", "max_connections=20")
	b := openAdvisory(t, advisoryURL(s, "postgres", s.Addr()))
	id := leasetest.Session(t, b, time.Hour, func(x backend.Loss) { t.Errorf("lost: %+v", x) })
	ask := func(n int) backend.AcquireRequest {
		r := leasetest.Ask(strconv.Itoa(n), id)
		r.Wait = false
		return r
	}
	var had []backend.AcquireRequest
	var refused error
	for n := range most {
		r := ask(n)
		if _, refused = b.Acquire(leasetest.Within(t), r); refused != nil {
			break
		}
		had = append(had, r)
	}
	var away *backend.UnavailableError
	if !errors.As(refused, &away) || away.MayHold {
		t.Fatalf("after %d locks: %v", len(had), refused)
	}
	t.Logf("after %d locks: %v", len(had), refused)
	if _, err := b.Acquire(leasetest.Within(t), ask(most)); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("another: %v", err)
	}
	if res, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id}); err != nil || res.SessionLost || len(res.Lost) > 0 {
		t.Fatalf("renew: %+v, %v", res, err)
	}
	for _, r := range had {
		leasetest.Give(t, b, r)
	}
	leasetest.Take(t, b, ask(most))
	if n := s.Int(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = (SELECT pid FROM holdfast_advisory.sessions)`); n != 2 {
		t.Errorf("the connection has %d locks; it should have its own, and one", n)
	}
}
