package leasetest

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/chaos"
)

// Bound is a server, and the backends on it whose locks belong to a connection, for one test.
type Bound struct {
	// Open opens a backend on the server, and Through one by way of a proxy. Victim opens one
	// whose connections the functions below are about.
	Open, Victim func() backend.Backend
	Through      func() (backend.Backend, *chaos.Proxy)
	// End ends connections of victims that have locks, at most so many, and returns how many.
	End func(most int) int
	// Conns counts the connections of victims that have locks.
	Conns func() int64
	// Leases counts the rows of leases. Age has the rows of sessions look an hour older.
	Leases func() int64
	Age    func()
	// Forbid makes the database refuse all rows of leases with a note.
	Forbid func(note string)
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

// ConnectionEnded (C10, F22): the server ends the connection that has the locks of a victim. The
// holder is told immediately, though no client calls or renews, and a waiter of other is granted
// the lock. The lease that was lost is never granted again.
func ConnectionEnded(t *testing.T, s Bound, other backend.Backend) {
	t.Helper()
	b := s.Victim()
	lost := make(chan backend.Loss, 1)
	id := Session(t, b, time.Hour, func(x backend.Loss) { lost <- x })
	held := Ask("n", id)
	before := Take(t, b, held)
	next := Ask("n", Session(t, other, time.Hour, nil))
	got := Start(t, other, next)
	inQueue(t, other, "n")
	if n := s.End(1); n != 1 {
		t.Fatalf("%d connections of the victim have locks", n)
	}
	if x := Heard(t, lost); x.Session != id || x.Lease != "" || x.Cause != backend.CauseSession {
		t.Errorf("told %+v", x)
	}
	if g := <-got; g.Err != nil || g.Grant.Token <= before {
		t.Errorf("the waiter has %+v after token %d", g, before)
	}
	if res, err := b.Renew(Within(t), backend.RenewRequest{Session: id}); err != nil || !res.SessionLost {
		t.Errorf("Renew: %+v, %v", res, err)
	}
	if err := b.Release(Within(t), backend.ReleaseRequest{Name: "n", Lease: held.Lease, Session: id}); !errors.Is(err, backend.ErrLost) {
		t.Errorf("Release: %v", err)
	}
	if _, err := b.Acquire(Within(t), Ask("m", id)); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("Acquire: %v", err)
	}
	Give(t, other, next)
	held.Session = next.Session
	if g, err := other.Acquire(Within(t), held); !errors.Is(err, backend.ErrLost) {
		t.Errorf("the lease that was lost is granted to another session: %+v, %v", g, err)
	}
}

// IdleConnectionEnded (C10): the same where there is nothing to look after.
func IdleConnectionEnded(t *testing.T, s Bound) {
	t.Helper()
	lost := make(chan backend.Loss, 1)
	Session(t, s.Victim(), time.Hour, func(x backend.Loss) { lost <- x })
	s.End(1)
	Heard(t, lost)
}

// ManyOnOneConnection (C4): one connection has all the locks of a session, and the waiters of
// the session do not keep the other requests, or a renewal, from it.
func ManyOnOneConnection(t *testing.T, s Bound) {
	t.Helper()
	b, other := s.Victim(), s.Open()
	const locks, waiters = 200, 40
	id, theirs := Session(t, b, time.Hour, nil), Session(t, other, time.Hour, nil)
	var held []backend.AcquireRequest
	var waiting []<-chan Answer
	for i := range waiters {
		r := Ask("busy"+strconv.Itoa(i), theirs)
		Take(t, other, r)
		held = append(held, r)
		waiting = append(waiting, Start(t, b, Ask(r.Name, id)))
	}
	var all sync.WaitGroup
	for i := range locks {
		all.Go(func() {
			if _, err := b.Acquire(Within(t), Ask("n"+strconv.Itoa(i), id)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if res, err := b.Renew(Within(t), backend.RenewRequest{Session: id}); err != nil || res.SessionLost {
		t.Errorf("Renew: %+v, %v", res, err)
	}
	if n := s.Conns(); n != 1 {
		t.Errorf("%d connections have locks", n)
	}
	for i, r := range held {
		Give(t, other, r)
		if g := <-waiting[i]; g.Err != nil {
			t.Error(g.Err)
		}
	}
	if n := s.Conns(); n != 1 {
		t.Errorf("%d connections have locks", n)
	}
}

// HolderCutOff (F3, F1, C4): nothing comes from a holder any more, and the server is not told of
// its end. The server frees the lock by itself, and not before the TTL; the holder is told.
func HolderCutOff(t *testing.T, s Bound) {
	t.Helper()
	const ttl = 12 * time.Second // the waiter is in the queue in this time
	b, proxy := s.Through()
	other := s.Open()
	lost := make(chan backend.Loss, 1)
	from := time.Now()
	id := Session(t, b, ttl, func(x backend.Loss) { lost <- x })
	before := Take(t, b, Ask("n", id))
	got := Start(t, other, Ask("n", Session(t, other, time.Hour, nil)))
	inQueue(t, other, "n")
	proxy.BlackHole()
	g := <-got
	if g.Err != nil || g.Grant.Token <= before {
		t.Fatalf("the waiter has %+v after token %d", g, before)
	}
	if early := ttl - time.Since(from); early > 0 {
		t.Errorf("the lock was free %s before the TTL had elapsed", early)
	}
	Heard(t, lost)
}

// CutOffAfterARenewal (F3, C1): a session was renewed late in its time, and then nothing comes
// from it any more. Its holder believes for a whole TTL from the renewal on that it holds the
// lock, and no other client is granted it for that long.
func CutOffAfterARenewal(t *testing.T, s Bound) {
	t.Helper()
	b, proxy := s.Through()
	other := s.Open()
	const ttl = 12 * time.Second
	late := time.NewTimer(ttl / 2) //nolint:mnd // this part of its time has passed, and a slow renewal is in time
	defer late.Stop()
	id := Session(t, b, ttl, nil)
	Take(t, b, Ask("n", id))
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
	if g := <-got; g.Err != nil {
		t.Fatal(g.Err)
	}
	if early := ttl - time.Since(renewed); early > 0 {
		t.Errorf("the lock was free %s before the holder's lease had expired", early)
	}
}

// BreakOfADeafHolder (C10): a holder does not release what it was asked to release. It loses its
// connection.
func BreakOfADeafHolder(t *testing.T, s Bound) {
	t.Helper()
	b, proxy := s.Through()
	other := s.Open()
	held := Ask("n", Session(t, b, time.Hour, nil))
	before := Take(t, b, held)
	proxy.BlackHole()
	res, err := other.Break(Within(t), backend.BreakRequest{Name: "n", Reason: "it sleeps"})
	if err != nil || len(res.Broken) != 1 || res.Broken[0].Lease != held.Lease || res.Token <= before {
		t.Fatalf("Break: %+v, %v", res, err)
	}
	r := Ask("n", Session(t, other, time.Hour, nil))
	r.Wait = false
	if g, err := other.Acquire(Within(t), r); err != nil || g.Token < res.Token {
		t.Errorf("after the break: %+v, %v", g, err)
	}
}

// TwoBreaksOfADeafHolder (C10): two breaks meet the same holder, which does not hear of them. One
// of them names it.
func TwoBreaksOfADeafHolder(t *testing.T, s Bound) {
	t.Helper()
	b, proxy := s.Through()
	others := []backend.Backend{s.Open(), s.Open()}
	Take(t, b, Ask("n", Session(t, b, time.Hour, nil)))
	proxy.BlackHole()
	var breaks sync.WaitGroup
	var named atomic.Int64
	for _, o := range others {
		breaks.Go(func() {
			res, err := o.Break(Within(t), backend.BreakRequest{Name: "n", Actor: "test"})
			if err != nil {
				t.Error(err)
			}
			named.Add(int64(len(res.Broken)))
		})
	}
	breaks.Wait()
	if named.Load() != 1 {
		t.Errorf("two breaks named %d victims, and there was one holder", named.Load())
	}
}

// EndedUnderLoad (C2): many clients acquire and release the same few locks, writers and, where
// the backend has them, readers, while connections of theirs are ended, most at a time. Tokens
// rise, and no client waits for ever.
func EndedUnderLoad(t *testing.T, s Bound, most int) {
	t.Helper()
	const locks, workers, ends, between = 3, 8, 10, 40
	stop, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	last := make(map[string]fence.Token) // of writers
	var grants atomic.Int64
	var all sync.WaitGroup
	for i := range workers {
		b := s.Victim()
		readers := b.Capabilities().Shared
		all.Go(func() {
			for n := i; stop.Err() == nil; {
				var over atomic.Bool
				id := backend.NewSessionID()
				if err := b.OpenSession(Within(t), backend.SessionRequest{ID: id, TTL: time.Hour, Lost: func(backend.Loss) { over.Store(true) }}); err != nil {
					continue
				}
				for ; stop.Err() == nil && !over.Load(); n++ {
					req := Ask("n"+strconv.Itoa(n%locks), id)
					if readers && n%4 == 0 {
						req.Mode = backend.Shared
					}
					g, err := b.Acquire(stop, req)
					if err != nil {
						continue
					}
					grants.Add(1)
					mu.Lock()
					// A holder that has lost it may report that late.
					if req.Mode == backend.Exclusive && g.Token <= last[req.Name] && !over.Load() {
						if info, err := b.Inspect(Within(t), req.Name); err == nil && len(info.Holders) == 1 && info.Holders[0].Lease == req.Lease {
							t.Errorf("token %d after %d", g.Token, last[req.Name])
						}
					}
					if req.Mode == backend.Exclusive {
						last[req.Name] = max(last[req.Name], g.Token)
					}
					mu.Unlock()
					_ = b.Release(Within(t), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: id})
				}
			}
		})
	}
	for n := range ends {
		Eventually(t, "they go on", func() bool { return grants.Load() >= int64(between*(n+1)) })
		s.End(most)
	}
	cancel()
	all.Wait()
}

// LostGrant (C6, C7): the lock was acquired, and the reply is lost. Nothing is held when the
// session has ended, because the connection ends with it immediately.
func LostGrant(t *testing.T, s Bound) {
	t.Helper()
	b, proxy := s.Through()
	other := s.Open()
	lost := make(chan backend.Loss, 1)
	id := Session(t, b, time.Hour, func(x backend.Loss) { lost <- x })
	free(t, b, Ask("warm", id))
	req := Ask("n", id)
	done := proxy.LoseReply(func(piece []byte) bool { // to what records the lease
		return bytes.Contains(piece, []byte(req.Lease)) && !bytes.Contains(piece, []byte("GET_LOCK"))
	})
	got := Start(t, b, req)
	<-done
	Eventually(t, "it is had", func() bool {
		info, err := other.Inspect(Within(t), "n")
		return err == nil && len(info.Holders) == 1 && info.Holders[0].Lease == req.Lease
	})
	theirs := Start(t, other, Ask("n", Session(t, other, time.Hour, nil)))
	inQueue(t, other, "n")
	proxy.Reset()
	if g := <-got; !errors.Is(g.Err, backend.ErrSessionLost) {
		t.Errorf("the acquire: %+v", g)
	}
	Heard(t, lost)
	if g := <-theirs; g.Err != nil {
		t.Error(g.Err)
	}
}

// DeadRows (C13): the next session removes the rows of a client that died, and until then its
// leases are not reported.
func DeadRows(t *testing.T, s Bound) {
	t.Helper()
	b, other := s.Victim(), s.Open()
	Take(t, b, Ask("n", Session(t, b, time.Hour, nil)))
	if info, err := other.Inspect(Within(t), "n"); err != nil || len(info.Holders) != 1 {
		t.Fatalf("%+v, %v", info, err)
	}
	s.End(1)
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

// RenewalIsHeard (C9): a renewal succeeds when the server has received it, and not before.
func RenewalIsHeard(t *testing.T, s Bound) {
	t.Helper()
	b, proxy := s.Through()
	id := Session(t, b, time.Hour, nil)
	proxy.BlackHole()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) //nolint:mnd // no time-out is long enough
	defer cancel()
	if res, err := b.Renew(ctx, backend.RenewRequest{Session: id}); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Renew: %+v, %v", res, err)
	}
	proxy.Reset()
}

// NotWrittenDown has the database refuse the row of a lock, as it does on a full disk. The
// caller gets an error which says that nothing is held. The lock is free for others, and no
// lease of the session is lost.
func NotWrittenDown(t *testing.T, s Bound) {
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
