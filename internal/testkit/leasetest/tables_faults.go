package leasetest

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/chaos"
)

// losing runs a call whose reply is lost on the way: the one to the first request with the text. It returns the error of the
// call, after cut has ended it. committed waits until the request has been executed.
func losing(t *testing.T, proxy *chaos.Proxy, text string, call func(context.Context) error, committed func(), cut func(giveUp func())) error {
	t.Helper()
	lost := proxy.LoseReply(func(piece []byte) bool { return bytes.Contains(piece, []byte(text)) })
	ctx, cancel := context.WithTimeout(t.Context(), 2*Patience) // longer than anything here takes
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- call(ctx) }()
	isLost(t, lost, failed)
	committed()
	cut(cancel)
	err := <-failed
	proxy.Heal()
	return err
}

// inDoubt fails the test unless the error says that the lease may be held.
func inDoubt(t *testing.T, what string, err error) {
	t.Helper()
	if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold {
		t.Errorf("%s whose reply was lost: %v; it has to say that the lease may be held", what, err)
	}
}

// lostReplies (B): the reply to a commit is lost: once in silence, and once with the connection. The error says that the lease
// may be held, and a second request for the same lease yields the same grant. What a release has handed over is granted.
func lostReplies(t *testing.T, s *Tables) {
	t.Helper()
	b, proxy := s.behind(t)
	other := s.open()
	id := Session(t, b, Long, nil)
	reset := func(func()) { proxy.Reset() }
	for _, cut := range []func(func()){func(giveUp func()) { giveUp() }, reset} {
		req := Ask("n", id)
		req.Note = "only in the statement that writes it"
		var info backend.LockInfo
		inDoubt(t, "Acquire", losing(t, proxy, req.Note, func(ctx context.Context) error {
			_, err := b.Acquire(ctx, req)
			return err
		}, func() {
			Eventually(t, "it is committed", func() bool { // statements that travel together are answered one by one
				var err error
				info, err = other.Inspect(Within(t), "n")
				return err == nil && len(info.Holders) == 1
			})
		}, cut))
		if again := Take(t, b, req); again != info.Holders[0].Token {
			t.Errorf("the same Acquire gave token %d, then %d", info.Holders[0].Token, again)
		}
		Give(t, b, req)
	}
	held, waits := Ask("n", id), Ask("n", Session(t, other, Long, nil))
	Take(t, b, held)
	got := Start(t, other, waits)
	InQueue(t, other, "n", 1)
	inDoubt(t, "Release", losing(t, proxy, string(waits.Lease), func(ctx context.Context) error {
		return b.Release(ctx, backend.ReleaseRequest{Name: "n", Lease: held.Lease, Session: id})
	}, func() {
		if g := <-got; g.Err != nil {
			t.Errorf("who waits: %v", g.Err)
		}
	}, reset))
	Give(t, other, waits)
	LostRenewalReply(t, b, proxy)
}

// LostRenewalReply (B): the reply to the renewal of a timed lease is lost with the connection,
// on the way of b, which is through the proxy. The renewal may still reach the server, after a
// longer one, and shorten the lease. So the caller is told, also where a retry would work.
func LostRenewalReply(t *testing.T, b backend.Backend, proxy *chaos.Proxy) {
	t.Helper()
	req := backend.AcquireRequest{Name: "timed", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Hour}
	Take(t, b, req)
	renew := func(ctx context.Context) error {
		res, err := b.Renew(ctx, backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: req.Name, Lease: req.Lease, TTL: time.Minute}}})
		if err == nil {
			err = res.Leases[0].Err
		}
		return err
	}
	if err := losing(t, proxy, string(req.Lease), renew, func() {}, func(func()) { proxy.Reset() }); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("a renewal that may still be on its way: %v", err)
	}
	if err := InsistOn(t, renew); err != nil {
		t.Errorf("renewed again: %v", err)
	}
}

// sleeper (F8): a process sleeps in the middle of a transaction, with the row of a lock locked. The server ends its connection,
// and the other clients continue.
func sleeper(t *testing.T, s *Tables) {
	t.Helper()
	sleeps, proxy := s.behind(t)
	b := s.open()
	Session(t, sleeps, Long, nil)
	awake := Session(t, b, Long, nil)
	first := Ask("n", awake)
	Take(t, b, first)
	Give(t, b, first)

	// Its transaction waits for the row, and when it gets that its client is gone.
	commit := s.Begin(s.script(`UPDATE @locks SET used = $NOW WHERE name = '$N'`, &first)...)
	got, ctx, began := make(chan error, 1), Within(t), time.Now()
	go func() {
		got <- sleeps.Release(ctx, backend.ReleaseRequest{Name: "n", Lease: backend.NewLeaseID(), Abandon: true})
	}()
	Eventually(t, "the transaction waits", s.Waits)
	proxy.Hold(chaos.Replies)
	commit()
	// On a busy machine the server may have ended it by now.
	Eventually(t, "it sleeps with the row locked", func() bool { return !s.Waits() })
	another, mine, from := Ask("another", awake), Ask("n", awake), time.Now()
	Take(t, b, another)
	t.Logf("another lock took %s", time.Since(from))
	Take(t, b, mine)
	t.Logf("the lock took %s", time.Since(from))
	proxy.Heal()
	proxy.Reset()
	const longest = 10 * time.Second // of a request; a busy machine may take more
	if err := <-got; err != nil && (time.Since(began) < longest || !errors.Is(err, backend.ErrUnavailable)) {
		t.Errorf("it is to be retried: %v", err)
	}
	Give(t, b, mine)
}

// sweep (C2): the rows of locks that no client uses are removed, while clients use others. Tokens never go back, and nor does
// what they start from. One session lives on.
func sweep(t *testing.T, s *Tables) {
	t.Helper()
	const locks, rounds = 4, 150
	sweeper, b, other := s.open(), s.Open(s.URL(s.Addr)), s.open()
	id, ended := Session(t, b, time.Hour, nil), Session(t, other, time.Hour, nil)
	if err := other.EndSession(Within(t), ended); err != nil {
		t.Fatal(err)
	}
	stop, cancel := context.WithCancel(Within(t))
	var all, users sync.WaitGroup
	all.Go(func() {
		for stop.Err() == nil {
			sweeper.Sweep(stop, 0)
		}
	})
	for i := range locks {
		users.Go(func() {
			var last fence.Token
			for range rounds {
				req := Ask("n"+strconv.Itoa(i), id)
				g, err := b.Acquire(Within(t), req)
				if err != nil || g.Token <= last {
					t.Errorf("token %d after %d, %v", g.Token, last, err)
					return
				}
				last = g.Token
				if err := b.Release(Within(t), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: id, Abandon: true}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	users.Wait()
	cancel()
	all.Wait()
	gone := func() {
		Eventually(t, "nothing is left", func() bool { // the server may not have noticed yet that the last sweep was broken off
			sweeper.Sweep(Within(t), 0)
			return s.int(`SELECT (SELECT count(*) FROM @locks) + (SELECT count(*) FROM @leases)`) == 0
		})
	}
	gone()
	if n := s.int(`SELECT count(*) FROM @sessions`); n != 1 { // the live one
		t.Errorf("%d sessions are left", n)
	}
	last := Ask("last", id)
	Take(t, b, last)
	Give(t, b, last)
	const floor = 1 << 52
	s.Exec(s.script(`UPDATE @meta SET $FLOOR = `+strconv.Itoa(floor), nil)...)
	gone()
	if got := s.int(`SELECT $FLOOR FROM @meta`); got != floor {
		t.Errorf("the floor is %d, and was %d", got, floor)
	}
}

// renewalOnItsWay (C4): a renewal that came in time is on its way to the disk at the moment when the
// session would have ended without it. A reader of the session sees the old end meanwhile. The session
// lives, keeps its place in the queue, acquires, and can be renewed again.
func renewalOnItsWay(t *testing.T, s *Tables) {
	t.Helper()
	const ttl, past = 12 * time.Second, time.Second
	b := s.Open(s.URL(s.Addr))
	held := Ask("n", Session(t, b, Long, nil))
	Take(t, b, held)
	lost := make(chan backend.Loss, 1)
	id := Session(t, b, ttl, func(l backend.Loss) { lost <- l })
	ended, later := time.After(ttl+past/2), time.After(ttl+2*past) //nolint:mnd // half
	waits := Ask("n", id)
	queued := Start(t, b, waits)
	InQueue(t, b, "n", 1)
	commit := s.Begin(s.script(`UPDATE @sessions SET ends = $NOW + $HOUR, ttl = 3600000000 WHERE ends > $NOW AND id = '$S'`, &waits)...)
	<-ended
	free := Start(t, b, Ask("free", id))
	again := make(chan error, 1)
	go func() {
		r, err := b.Renew(Within(t), backend.RenewRequest{Session: id})
		if r.SessionLost {
			err = backend.ErrSessionLost
		}
		again <- err
	}()
	<-later
	commit()
	Give(t, b, held)
	for what, answers := range map[string]<-chan Answer{"in the queue": queued, "of a free lock": free} {
		if got := <-answers; got.Err != nil {
			t.Errorf("Acquire, %s: %v; the session was renewed in time", what, got.Err)
		}
	}
	if err := <-again; err != nil {
		t.Errorf("Renew, beside another one: %v; the session was renewed in time", err)
	}
	select {
	case l := <-lost:
		t.Errorf("a session that was renewed in time: %+v", l)
	default:
	}
}
