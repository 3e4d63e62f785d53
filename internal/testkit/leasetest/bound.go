package leasetest

import (
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/chaos"
)

// Bound is a server, and the backends on it whose locks belong to a connection, for one test.
type Bound struct {
	// Open opens a backend on the server, and Through one by way of a proxy. Victim opens one
	// whose connections the functions below are about.
	Open, Victim func() backend.Backend
	Through      func() (backend.Backend, *chaos.Proxy)
	// End ends a connection of a victim that has locks, and returns 0 if there is none.
	End func() int64
	// Leases counts the rows of leases. Age has the rows of sessions look an hour older.
	Leases func() int64
	Age    func()
	// Forbid makes the database refuse all rows of leases with a note.
	Forbid func(note string)
}

// Bounds runs what every store of locks of a connection survives. start starts a server, and returns it with the backends
// on it.
func Bounds(t *testing.T, start func(*testing.T) Bound) {
	t.Helper()
	for name, x := range map[string]struct {
		test func(*testing.T, Bound)
		slow bool
	}{
		"connection-ended": {connectionEnded, false}, "dead-rows": {deadRows, false}, "holder-cut-off": {holderCutOff, true},
		"deaf-holder-broken": {deafHolderBroken, false}, "not-written-down": {notWrittenDown, true},
	} {
		t.Run(name, func(t *testing.T) {
			if x.slow {
				Slow(t)
			}
			t.Parallel()
			x.test(t, start(t))
		})
	}
}

// Heard waits for a loss, or fails the test.
func Heard(t *testing.T, lost <-chan backend.Loss) backend.Loss {
	t.Helper()
	select {
	case x := <-lost:
		return x
	case <-time.After(Patience):
		t.Fatal("the loss was not told")
		return backend.Loss{}
	}
}

// inQueue waits until a waiter is queued, where the backend reports that.
func inQueue(t *testing.T, b backend.Backend, name string) {
	t.Helper()
	if b.Capabilities().Push {
		InQueue(t, b, name, 1)
	}
}

// connectionEnded (C10, F22): the server ends the connection that has the locks of a victim. The
// holder is told immediately, though no client calls or renews, and a waiter is granted the lock.
// The lease that was lost is never granted again. A session that has nothing is told, too.
func connectionEnded(t *testing.T, s Bound) {
	t.Helper()
	b, other := s.Victim(), s.Open()
	lost := make(chan backend.Loss, 1)
	tell := func(x backend.Loss) { lost <- x }
	id := Session(t, b, time.Hour, tell)
	held := Ask("n", id)
	before := Take(t, b, held)
	next := Ask("n", Session(t, other, time.Hour, nil))
	got := Start(t, other, next)
	inQueue(t, other, "n")
	if s.End() == 0 {
		t.Fatal("no connection of the victim has locks")
	}
	if x := Heard(t, lost); x.Session != id || x.Lease != "" || x.Cause != backend.CauseSession {
		t.Errorf("told %+v", x)
	}
	if g := <-got; g.Err != nil || g.Grant.Token <= before {
		t.Errorf("the waiter has %+v after token %d", g, before)
	}
	Give(t, other, next)
	held.Session = next.Session
	if g, err := other.Acquire(Within(t), held); !errors.Is(err, backend.ErrLost) {
		t.Errorf("the lease that was lost is granted to another session: %+v, %v", g, err)
	}
	id = Session(t, b, time.Hour, tell)
	s.End()
	if x := Heard(t, lost); x.Session != id {
		t.Errorf("told %+v", x)
	}
}

// holderCutOff (F1, F3, C1, C4): a session was renewed late in its time. Then nothing comes from it any more, and the server
// is not told of its end. The server frees the lock by itself, no earlier than a whole TTL after the renewal: for so long the
// holder believes that it holds the lock. The holder is told.
func holderCutOff(t *testing.T, s Bound) {
	t.Helper()
	b, proxy := s.Through()
	other := s.Open()
	const ttl = 12 * time.Second
	late := time.NewTimer(ttl / 2) //nolint:mnd // this part of its time has passed, and a slow renewal is in time
	defer late.Stop()
	lost := make(chan backend.Loss, 1)
	id := Session(t, b, ttl, func(x backend.Loss) { lost <- x })
	before := Take(t, b, Ask("n", id))
	got := Start(t, other, Ask("n", Session(t, other, time.Hour, nil)))
	inQueue(t, other, "n")
	select {
	case <-late.C:
	case g := <-got:
		t.Fatalf("the waiter has %+v, while the lock is held", g)
	}
	renewed := time.Now()
	if res, err := b.Renew(Within(t), backend.RenewRequest{Session: id}); err != nil || res.SessionLost {
		t.Fatalf("renew: %+v, %v", res, err)
	}
	proxy.BlackHole()
	if g := <-got; g.Err != nil || g.Grant.Token <= before {
		t.Fatalf("the waiter has %+v after token %d", g, before)
	}
	if early := ttl - time.Since(renewed); early > 0 {
		t.Errorf("the lock was free %s before the holder's lease had expired", early)
	}
	Heard(t, lost)
}

// deafHolderBroken (C10): two breaks meet a holder that does not release what it was asked to release. It
// loses its connection, and one of them names it.
func deafHolderBroken(t *testing.T, s Bound) {
	t.Helper()
	b, proxy := s.Through()
	others := []backend.Backend{s.Open(), s.Open()}
	held := Ask("n", Session(t, b, time.Hour, nil))
	before := Take(t, b, held)
	proxy.BlackHole()
	var breaks sync.WaitGroup
	results := make([]backend.BreakResult, len(others))
	for i, o := range others {
		breaks.Go(func() {
			var err error
			if results[i], err = o.Break(Within(t), backend.BreakRequest{Name: "n", Actor: "test"}); err != nil || results[i].Token <= before {
				t.Errorf("Break: %+v, %v", results[i], err)
			}
		})
	}
	breaks.Wait()
	if named := slices.Concat(results[0].Broken, results[1].Broken); len(named) != 1 || named[0].Lease != held.Lease {
		t.Errorf("two breaks named %+v, and there was one holder", named)
	}
	r := Ask("n", Session(t, others[0], time.Hour, nil))
	r.Wait = false
	if g, err := others[0].Acquire(Within(t), r); err != nil || g.Token < max(results[0].Token, results[1].Token) {
		t.Errorf("after the breaks: %+v, %v", g, err)
	}
}

// deadRows (C13): the next session removes the rows of a client that died, and until then its
// leases are not reported.
func deadRows(t *testing.T, s Bound) {
	t.Helper()
	b, other := s.Victim(), s.Open()
	Take(t, b, Ask("n", Session(t, b, time.Hour, nil)))
	if info, err := other.Inspect(Within(t), "n"); err != nil || len(info.Holders) != 1 {
		t.Fatalf("%+v, %v", info, err)
	}
	s.End()
	Eventually(t, "it is not told", func() bool {
		info, err := other.Inspect(Within(t), "n")
		return err == nil && len(info.Holders) == 0
	})
	if n := s.Leases(); n != 1 {
		t.Fatalf("%d rows; the server said nothing to the client, which could not tidy up", n)
	}
	s.Age()
	Session(t, other, time.Hour, nil)
	if n := s.Leases(); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// notWrittenDown has the database refuse the row of a lock, as it does on a full disk. The
// caller gets an error which says that nothing is held. The lock is free for others, and no
// lease of the session is lost.
func notWrittenDown(t *testing.T, s Bound) {
	t.Helper()
	const note = "too much"
	b, other := s.Open(), s.Open()
	id := Session(t, b, time.Hour, func(x backend.Loss) { t.Errorf("lost: %+v", x) })
	theirs := Session(t, other, time.Hour, nil)
	held := Ask("held", id)
	Take(t, b, held)
	s.Forbid(note)
	modes := []backend.Mode{backend.Exclusive}
	if b.Capabilities().Shared {
		modes = append(modes, backend.Shared)
	}
	for _, mode := range modes {
		for _, wait := range []bool{false, true} {
			r := Ask("n", id)
			r.Mode, r.Note, r.Wait = mode, note, wait
			_, err := b.Acquire(Within(t), r)
			var away *backend.UnavailableError
			if !errors.As(err, &away) || away.MayHold {
				t.Fatalf("%s, waiting %v: %v", mode, wait, err)
			}
			free(t, other, Ask("n", theirs))
			r = Ask("n", id)
			r.Mode = mode
			free(t, b, r)
		}
	}
	// A waiter that is refused when its turn has come.
	theirLock, mine := Ask("n", theirs), Ask("n", id)
	mine.Note = note
	Take(t, other, theirLock)
	got := Start(t, b, mine)
	inQueue(t, other, "n")
	Give(t, other, theirLock)
	if g := <-got; !errors.Is(g.Err, backend.ErrUnavailable) {
		t.Errorf("one that waited: %+v", g)
	}
	free(t, other, Ask("n", theirs))
	manyNotWrittenDown(t, b, id, note)
	for i := range many {
		free(t, other, Ask(strconv.Itoa(i), theirs))
	}
	if res, err := b.Renew(Within(t), backend.RenewRequest{Session: id}); err != nil || res.SessionLost || len(res.Lost) > 0 {
		t.Errorf("renew: %+v, %v", res, err)
	}
	Give(t, b, held)
}

// many is the number of concurrent requests.
const many = 24

// manyNotWrittenDown requests many locks concurrently, some with the note. Others may be
// refused beside those, because they were requested in the same batch. Nothing is left of any
// of them, so that all can be acquired under the same lease.
func manyNotWrittenDown(t *testing.T, b backend.Backend, id backend.SessionID, note string) {
	t.Helper()
	all, got := make([]backend.AcquireRequest, many), make([]<-chan Answer, many)
	for i := range all {
		all[i] = Ask(strconv.Itoa(i), id)
		all[i].Wait = false
		asked := all[i]
		if i%4 == 3 {
			asked.Note = note
		}
		got[i] = Start(t, b, asked)
	}
	var refused []backend.AcquireRequest
	for i, r := range all {
		switch g := <-got[i]; {
		case errors.Is(g.Err, backend.ErrUnavailable):
			refused = append(refused, r)
		case g.Err != nil:
			t.Errorf("one of many: %v", g.Err)
		}
	}
	for _, r := range refused { // now that no request is in progress with which they could share a batch
		Take(t, b, r)
	}
	for _, r := range all {
		Give(t, b, r)
	}
}

// free acquires a lock that is free, and releases it.
func free(t *testing.T, b backend.Backend, r backend.AcquireRequest) {
	t.Helper()
	r.Wait = false
	Take(t, b, r)
	Give(t, b, r)
}
