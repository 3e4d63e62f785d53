package leasetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// Inflating is a backend that inflates locks which it has just taken, by a long transaction that
// abandons a lease that there never was.
type Inflating struct{ backend.Backend }

// Acquire acquires the lock and inflates it, within a minute: the caller's context may have ended.
func (b Inflating) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	g, err := b.Backend.Acquire(ctx, req)
	if err == nil && !g.Waited {
		within, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer stop()
		_ = b.Release(within, backend.ReleaseRequest{Name: req.Name, Lease: backend.NewLeaseID(), Abandon: true}) // the server may be down by now
	}
	return g, err
}

// Drawn returns what gives each backend value one of the forms, drawn by a seed that it logs.
func Drawn[B backend.Backend](t *testing.T, forms ...func(B) backend.Backend) func(B) backend.Backend {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("the forms of the values are drawn by the seed %d", seed)
	var mu sync.Mutex
	coin := rand.New(rand.NewPCG(seed, 0))
	return func(b B) backend.Backend {
		mu.Lock()
		defer mu.Unlock()
		return forms[coin.IntN(len(forms))](b)
	}
}

// Unwatched is a backend that no case of the suite watches: while there is a watcher, no lock is thin.
type Unwatched struct{ backend.Backend }

// Capabilities are those of the backend, without Watch.
func (b Unwatched) Capabilities() backend.Capabilities {
	caps := b.Backend.Capabilities()
	caps.Watch = false
	return caps
}

// Watch is not supported.
func (b Unwatched) Watch(context.Context, backend.WatchRequest, func(backend.Event)) error {
	return backend.ErrUnsupported
}

// thin (C1, C2, C5, C6, C10): a lock becomes fat when more than one client is interested in it, keeps
// its holder, token and time, and is thin again when it is free.
func thin(t *testing.T, s *Tables) {
	t.Helper()
	b, other := s.open(), s.open()
	thins := func() int64 { return s.int(`SELECT count(*) FROM @locks WHERE lease <> '' AND fat = 0`) }
	are := func(thin, fat int64) {
		t.Helper()
		if a, b := thins(), s.int(`SELECT count(*) FROM @leases`); a != thin || b != fat {
			t.Errorf("%d locks are thin, and there are %d fat leases; %d and %d are to be", a, b, thin, fat)
		}
	}
	sweepsOld := func() {
		s.Exec(s.script(`UPDATE @locks SET used = used - $HOUR`, nil)...)
		other.Sweep(Within(t), time.Minute)
	}
	mine, theirs := Session(t, b, time.Hour, nil), Session(t, other, time.Hour, nil)
	give := func(req backend.AcquireRequest) error {
		return b.Release(Within(t), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: mine})
	}
	Take(t, b, Ask("first", mine))
	are(1, 0)

	req := Ask("n", mine)
	req.Owner, req.Note = "ann", "why"
	g, err := b.Acquire(Within(t), req)
	if err != nil || g.Token <= 0 {
		t.Fatalf("%+v, %v", g, err)
	}
	are(2, 0)
	shown := func(thin, fat int64) {
		t.Helper()
		info, err := other.Inspect(Within(t), "n")
		if err != nil || len(info.Holders) != 1 {
			t.Fatalf("Inspect: %+v, %v", info, err)
		}
		h := info.Holders[0]
		if h.Lease != req.Lease || h.Session != mine || h.Owner != "ann" || h.Note != "why" || h.Token != g.Token || !h.Since.Equal(g.Since) || h.Left < time.Minute {
			t.Errorf("Inspect: %+v; the grant is %+v", h, g)
		}
		if page, err := other.List(Within(t), backend.ListRequest{}); err != nil || len(page.Locks) != 2 {
			t.Errorf("List: %+v, %v", page, err)
		}
		are(thin, fat)
	}
	shown(2, 0)
	if _, err := other.Acquire(Within(t), backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Session: theirs}); !errors.Is(err, backend.ErrHeld) {
		t.Errorf("it is held: %v", err)
	}
	shown(2, 0) // a refusal changes nothing
	sweepsOld()
	shown(2, 0) // it is held, for however long
	again, err := b.Acquire(Within(t), req)
	if err != nil || again.Token != g.Token || !again.Since.Equal(g.Since) {
		t.Errorf("the same lease again: %+v, %v", again, err)
	}
	shown(1, 1)
	waits := Ask("n", theirs)
	got := Start(t, other, waits)
	InQueue(t, b, "n", 1)
	if err := give(req); err != nil {
		t.Error(err)
	}
	if a := <-got; a.Err != nil || a.Grant.Token <= g.Token {
		t.Errorf("the one in the queue: %+v after %d", a, g.Token)
	}
	Give(t, other, waits)
	are(1, 0)

	calm := Ask("n", mine) // b finds that the lock is not contended any more
	Take(t, b, calm)
	are(1, 1)
	if _, err := other.Acquire(Within(t), backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Session: theirs}); !errors.Is(err, backend.ErrHeld) {
		t.Errorf("it is held, and fat: %v", err)
	}
	Give(t, b, calm)
	are(1, 0)

	waitedFor := Ask("n", mine)
	Take(t, b, waitedFor)
	are(2, 0)
	waits = Ask("n", theirs)
	got = Start(t, other, waits)
	InQueue(t, b, "n", 1)
	are(1, 2)
	Give(t, b, waitedFor)
	if a := <-got; a.Err != nil {
		t.Error(a.Err)
	}
	Give(t, other, waits)
	calm = Ask("n", mine)
	Take(t, b, calm)
	Give(t, b, calm)
	are(1, 0)

	broken := Ask("n", mine)
	last := Take(t, b, broken)
	are(2, 0)
	res, err := other.Break(Within(t), backend.BreakRequest{Name: "n"})
	if err != nil || len(res.Broken) != 1 || res.Broken[0].Lease != broken.Lease || res.Token <= last {
		t.Errorf("Break: %+v, %v", res, err)
	}
	are(1, 0)
	if err := give(broken); !errors.Is(err, backend.ErrLost) {
		t.Errorf("release of what was broken: %v", err)
	}

	dead := Session(t, other, time.Hour, nil)
	Take(t, other, Ask("n", dead))
	if err := other.EndSession(Within(t), dead); err != nil {
		t.Fatal(err)
	}
	if page, err := b.List(Within(t), backend.ListRequest{}); err != nil || len(page.Locks) != 1 {
		t.Errorf("List: %+v, %v; the session has ended", page, err)
	}
	Eventually(t, "the thin lease of a session that has ended is gone", func() bool { sweepsOld(); return thins() == 1 })
	if token := Take(t, b, Ask("n", mine)); token <= res.Token {
		t.Errorf("token %d after %d", token, res.Token)
	}
}
