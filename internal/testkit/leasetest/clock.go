package leasetest

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// Clock is the wall clock of a server.
type Clock interface {
	Set(ahead time.Duration)
}

// ClockJump is by how much it jumps.
const ClockJump = time.Hour

// ClockMovesNothing (F12, F13): the server's clock jumps to each of jumps ahead of the time,
// one after the other. The holder, which sends nothing during this, keeps the lock; a waiter
// continues to wait, and is granted the lock when it is released. Tokens rise.
func ClockMovesNothing(t *testing.T, b, other backend.Backend, clock Clock, jumps ...time.Duration) {
	t.Helper()
	const watched = 3 * time.Second // longer than the interval of a task that the servers run once a second
	id, theirs := Session(t, b, Patience, nil), Session(t, other, Patience, nil)
	for _, ahead := range jumps {
		held, waits := Ask("n", id), Ask("n", theirs)
		before := Take(t, b, held)
		got := Start(t, other, waits)
		inQueue(t, other, "n")
		clock.Set(ahead)
		hasJumped(t, other, theirs, ahead)
		for from, first := time.Now(), true; first || time.Since(from) < watched; first = false {
			if g, err := other.Acquire(Within(t), try("n", theirs)); !errors.Is(err, backend.ErrHeld) {
				t.Fatalf("%s: the lock was acquired a second time: %+v, %v", ahead, g, err)
			}
			select {
			case g := <-got:
				t.Fatalf("%s: the waiter has the lock: %+v", ahead, g)
			case <-time.After(watched / 10): //nolint:mnd // now and then
			}
		}
		if res, err := b.Renew(Within(t), backend.RenewRequest{Session: id}); err != nil || res.SessionLost || len(res.Lost) > 0 {
			t.Fatalf("%s: Renew: %+v, %v", ahead, res, err)
		}
		Give(t, b, held)
		g := <-got
		if g.Err != nil || g.Grant.Token <= before {
			t.Fatalf("%s: the waiter has %+v after token %d", ahead, g, before)
		}
		Give(t, other, waits)
		again := Ask("n", theirs) // the waiter asked before the jump
		if token := Take(t, other, again); token <= g.Grant.Token {
			t.Fatalf("%s: token %d after %d", ahead, token, g.Grant.Token)
		}
		Give(t, other, again)
		if res, err := other.Renew(Within(t), backend.RenewRequest{Session: theirs}); err != nil || res.SessionLost {
			t.Fatalf("%s: Renew: %+v, %v", ahead, res, err)
		}
	}
}

// hasJumped checks that the server has the clock that the test set.
func hasJumped(t *testing.T, b backend.Backend, id backend.SessionID, ahead time.Duration) {
	t.Helper()
	req := Ask("clock", id)
	Take(t, b, req)
	info, err := b.Inspect(Within(t), req.Name)
	if err != nil || len(info.Holders) != 1 {
		t.Fatalf("Inspect: %+v, %v", info, err)
	}
	Give(t, b, req)
	if off := time.Since(info.Holders[0].Since) + ahead; off.Abs() > ClockJump/2 { //nolint:mnd // nearer to this than to no jump
		t.Fatalf("the clock of the server is %s off", off)
	}
}

// ClockAhead (F12): the clock of a server that counts with it jumps ahead while one client
// holds the lock and another waits. That ends the lease: the waiter is granted the lock, with a
// greater token, and the holder is told by its next renewal and has nothing to release.
func ClockAhead(t *testing.T, b, other backend.Backend, clock Clock) {
	t.Helper()
	const ttl = 30 * time.Second                                               // the waiter is in the queue in this time
	id, theirs := Session(t, b, ttl, nil), Session(t, other, 2*ClockJump, nil) // the other session outlives the jump
	held := Ask("n", id)
	before := Take(t, b, held)
	waits := Ask("n", theirs)
	got := Start(t, other, waits)
	inQueue(t, other, "n")
	clock.Set(ClockJump)
	g := <-got
	if g.Err != nil || g.Grant.Token <= before {
		t.Fatalf("the waiter has %+v after token %d", g, before)
	}
	if res, err := b.Renew(Within(t), backend.RenewRequest{Session: id}); err != nil || !res.SessionLost {
		t.Errorf("Renew: %+v, %v", res, err)
	}
	if err := b.Release(Within(t), backend.ReleaseRequest{Name: "n", Lease: held.Lease, Session: id}); !errors.Is(err, backend.ErrLost) {
		t.Errorf("Release: %v", err)
	}
	if last := turns(t, b, other, waits); last <= g.Grant.Token {
		t.Errorf("token %d after %d", last, g.Grant.Token)
	}
}

// turns passes the lock from its holder to b and back a few times, and returns the last token.
func turns(t *testing.T, b, other backend.Backend, has backend.AcquireRequest) fence.Token {
	t.Helper()
	mine := Session(t, b, Patience, nil)
	var last fence.Token
	for range 3 {
		next := Ask("n", mine)
		got := Start(t, b, next)
		inQueue(t, b, "n")
		Give(t, other, has)
		g := <-got
		if g.Err != nil || g.Grant.Token <= last {
			t.Fatalf("%+v after token %d", g, last)
		}
		Give(t, b, next)
		has = Ask("n", has.Session)
		if last = Take(t, other, has); last <= g.Grant.Token {
			t.Fatalf("token %d after %d", last, g.Grant.Token)
		}
	}
	return last
}

// ClockBack (F13): the clock of a server that counts with it jumps back while dead clients hold locks, and another waits
// for them: in the queue, and by asking again and again. It is granted each lock no earlier than the lease ends, and does not
// wait until the clock has caught up. The leases of live clients continue. timed: the same with a timed lease.
func ClockBack(t *testing.T, b, other backend.Backend, clock Clock, timed bool) {
	t.Helper()
	const (
		ttl                     = 10 * time.Second
		waits, insists, ofTimed = "who waits", "who asks again and again", "who waits for a timed lease"
	)
	lives := Session(t, b, 2*ClockJump, nil)
	Take(t, b, Ask("kept", lives))
	theirs := Session(t, other, 2*ClockJump, nil)
	cases := []string{waits, insists}
	if timed {
		cases = append(cases, ofTimed)
	}
	sent, dead := time.Now(), Session(t, b, ttl, nil)
	lost, before := make(map[string]backend.AcquireRequest), make(map[string]fence.Token)
	got := make(map[string]<-chan Answer)
	for _, name := range cases {
		req := Ask(name, dead)
		if name == ofTimed {
			req.Timed, req.TTL, req.Session, req.Wait = true, ttl, "", false
		}
		lost[name], before[name] = req, Take(t, b, req)
		if name != insists {
			got[name] = Start(t, other, Ask(name, theirs))
			inQueue(t, other, name)
		}
	}
	clock.Set(-ClockJump)
	got[insists] = insisting(t, other, Ask(insists, theirs))
	for _, name := range cases {
		g := <-got[name]
		if g.Err != nil || g.Grant.Token <= before[name] {
			t.Fatalf("%s: %+v after token %d", name, g, before[name])
		}
		if took := time.Since(sent); took < ttl {
			t.Errorf("%s: it had the lock after %s", name, took)
		}
		if err := b.Release(Within(t), backend.ReleaseRequest{Name: name, Lease: lost[name].Lease, Session: lost[name].Session}); !errors.Is(err, backend.ErrLost) {
			t.Errorf("%s: the dead: Release: %v", name, err)
		}
	}
	if res, err := b.Renew(Within(t), backend.RenewRequest{Session: lives}); err != nil || res.SessionLost {
		t.Errorf("Renew of a session that lives: %+v, %v", res, err)
	}
	if g, err := other.Acquire(Within(t), try("kept", theirs)); !errors.Is(err, backend.ErrHeld) {
		t.Errorf("a held lock was acquired: %+v, %v", g, err)
	}
	clock.Set(0)
}

// try returns a request that does not wait.
func try(name string, id backend.SessionID) backend.AcquireRequest {
	r := Ask(name, id)
	r.Wait = false
	return r
}

// insisting requests the lock, without waiting in the queue, until it is granted.
func insisting(t *testing.T, b backend.Backend, req backend.AcquireRequest) <-chan Answer {
	t.Helper()
	ctx := Within(t)
	got := make(chan Answer, 1)
	go func() {
		for {
			g, err := b.Acquire(ctx, try(req.Name, req.Session))
			if !errors.Is(err, backend.ErrHeld) {
				got <- Answer{g, err}
				return
			}
			select {
			case <-time.After(100 * time.Millisecond): //nolint:mnd // now and then
			case <-ctx.Done():
			}
		}
	}()
	return got
}
