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
	"github.com/holdfast-io/holdfast/internal/connect"
)

// ServerGone (C12): the server is gone, behind the proxy. A call ends with its context, and
// reports whether the lease may be held; Close returns.
func ServerGone(t *testing.T, b backend.Backend, proxy Proxy) {
	t.Helper()
	id := Session(t, b, time.Minute, nil)
	Take(t, b, Ask("kept", id))
	waits := Start(t, b, Ask("kept", id))
	InQueue(t, b, "kept", 1)
	proxy.BlackHole()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second) // the request is sent in this time
	defer cancel()
	from := time.Now()
	_, err := b.Acquire(ctx, Ask("n", id))
	var away *backend.UnavailableError
	if !errors.As(err, &away) || !away.MayHold || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Acquire: %v", err)
	}
	_, err = b.Renew(ctx, backend.RenewRequest{Session: id})
	if !errors.Is(err, backend.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Renew: %v", err)
	}
	if took := time.Since(from); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
	from = time.Now()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(from); took > 30*time.Second {
		t.Errorf("Close took %s", took)
	}
	if g := <-waits; !errors.Is(g.Err, backend.ErrClosed) {
		t.Errorf("the waiter: %v", g.Err)
	}
}

// KilledUnderLoad (F9): the server is killed again and again while many clients send requests.
// No client holds a lock that another holds, and tokens rise.
func KilledUnderLoad(t *testing.T, open func() backend.Backend, restart func()) {
	t.Helper()
	const locks, workers, kills = 3, 12, 3
	var backends []backend.Backend
	var sessions []backend.SessionID
	for range 3 {
		b := open()
		backends, sessions = append(backends, b), append(sessions, Session(t, b, time.Hour, nil))
	}
	var mu sync.Mutex
	held := make(map[string]backend.LeaseID)
	last := make(map[string]fence.Token)
	grants := 0
	stop, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	for i := range workers {
		b, id := backends[i%len(backends)], sessions[i%len(backends)]
		all.Go(func() {
			for n := 0; stop.Err() == nil; n++ {
				req := Ask("n"+strconv.Itoa((i+n)%locks), id)
				g, err := Insist(t, func(ctx context.Context) (backend.Grant, error) { return b.Acquire(ctx, req) })
				if err != nil {
					t.Errorf("acquire: %v", err)
					return
				}
				mu.Lock()
				if by := held[req.Name]; by != "" || g.Token <= last[req.Name] {
					t.Errorf("%s was granted with token %d; held by %q, last token %d", req.Name, g.Token, by, last[req.Name])
				}
				held[req.Name], last[req.Name] = req.Lease, g.Token
				grants++
				mu.Unlock()
				mu.Lock()
				delete(held, req.Name)
				mu.Unlock()
				_, err = Insist(t, func(ctx context.Context) (struct{}, error) {
					return struct{}{}, b.Release(ctx, backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: id})
				})
				if err != nil && !errors.Is(err, backend.ErrLost) { // it may have been released by a call whose reply was lost
					t.Errorf("release: %v", err)
					return
				}
			}
		})
	}
	for range kills {
		mu.Lock()
		from := grants
		mu.Unlock()
		Eventually(t, "grants continue", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return grants > from+50 || t.Failed()
		})
		restart()
	}
	cancel()
	all.Wait()
	t.Logf("%d grants", grants)
}

// MadeAtOnce (B): many processes use an empty database at the same time.
func MadeAtOnce(t *testing.T, open func() backend.Backend) {
	t.Helper()
	var all sync.WaitGroup
	for range 8 {
		b := open()
		all.Go(func() {
			if err := b.OpenSession(Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// Proxy is what these tests need of package chaos.
type Proxy interface {
	LoseReply(match func(piece []byte) bool) <-chan struct{}
	Reset()
	Heal()
	BlackHole()
}

// LostCommitReply (B): the reply to the commit is lost on the way of b, which is through the
// proxy: once in silence, and once with the connection. The error says that the lease may be
// held, and a second request for the same lease yields the same grant.
func LostCommitReply(t *testing.T, b, other backend.Backend, proxy Proxy) {
	t.Helper()
	id := Session(t, b, time.Minute, nil)
	for _, reset := range []bool{false, true} {
		req := Ask("n", id)
		req.Note = "only in the statement that writes it"
		lost := proxy.LoseReply(func(piece []byte) bool { return bytes.Contains(piece, []byte(req.Note)) })
		ctx, cancel := context.WithTimeout(t.Context(), 2*Patience) // longer than anything here takes
		failed := make(chan error, 1)
		go func() {
			_, err := b.Acquire(ctx, req)
			failed <- err
		}()
		isLost(t, lost, failed)
		var info backend.LockInfo
		Eventually(t, "it is committed", func() bool { // statements that travel together are answered one by one
			var err error
			info, err = other.Inspect(Within(t), "n")
			return err == nil && len(info.Holders) == 1
		})
		if reset {
			proxy.Reset()
		} else {
			cancel()
		}
		err := <-failed
		cancel()
		var away *backend.UnavailableError
		if !errors.As(err, &away) || !away.MayHold {
			t.Fatalf("Acquire whose reply was lost: %v; it has to say that the lease may be held", err)
		}
		proxy.Heal()
		if again := Take(t, b, req); again != info.Holders[0].Token {
			t.Errorf("the same Acquire gave token %d, then %d", info.Holders[0].Token, again)
		}
		Give(t, b, req)
	}
}

// isLost waits until a reply was lost, and fails the test if the call ends before, or is not sent.
func isLost(t *testing.T, lost <-chan struct{}, failed <-chan error) {
	t.Helper()
	select {
	case <-lost:
	case err := <-failed:
		t.Fatalf("it ended before its reply was lost: %v", err)
	case <-time.After(Patience):
		t.Fatal("nothing was sent")
	}
}

// LostRenewalReply (B): the reply to the renewal of a timed lease is lost with the connection,
// on the way of b, which is through the proxy. The renewal may still reach the server, after a
// longer one, and shorten the lease. So the caller is told, also where a retry would work.
func LostRenewalReply(t *testing.T, b backend.Backend, proxy Proxy) {
	t.Helper()
	req := backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Hour}
	Take(t, b, req)
	renew := func(ctx context.Context) (backend.RenewResult, error) {
		return b.Renew(ctx, backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: req.Name, Lease: req.Lease, TTL: time.Minute}}})
	}
	lost := proxy.LoseReply(func(piece []byte) bool { return bytes.Contains(piece, []byte(req.Lease)) })
	ctx := Within(t)
	failed := make(chan error, 1)
	go func() {
		_, err := renew(ctx)
		failed <- err
	}()
	isLost(t, lost, failed)
	proxy.Reset()
	if err := <-failed; !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("a renewal that may still be on its way: %v", err)
	}
	proxy.Heal()
	if res, err := Insist(t, renew); err != nil || res.Leases[0].Err != nil {
		t.Errorf("renewed again: %+v, %v", res, err)
	}
}

// Sweep (C2): the rows of locks that no client uses are removed, while clients use others.
// Tokens never go back. left counts the rows of locks and leases. One session lives on.
func Sweep(t *testing.T, open func() backend.Backend, sweep func(context.Context), left func() int64) {
	t.Helper()
	const locks, rounds = 4, 150
	b, other := open(), open()
	id, ended := Session(t, b, time.Hour, nil), Session(t, other, time.Hour, nil)
	bury := Ask("bury", id)
	Take(t, b, bury)
	Give(t, b, bury)
	if err := other.EndSession(Within(t), ended); err != nil {
		t.Fatal(err)
	}
	stop, cancel := context.WithCancel(Within(t))
	var all, users sync.WaitGroup
	all.Go(func() {
		for stop.Err() == nil {
			sweep(stop)
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
	Eventually(t, "nothing is left", func() bool { // the server may not have noticed yet that the last sweep was broken off
		sweep(Within(t))
		return left() == 0
	})
}

// Unsent waits until an Acquire of a backend whose server is gone says that it had no connection, so that it was not sent.
func Unsent(t *testing.T, b backend.Backend) {
	t.Helper()
	Eventually(t, "the error says that nothing was sent", func() bool {
		_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute})
		away, ok := errors.AsType[*backend.UnavailableError](err)
		if !ok {
			t.Fatal(err)
		}
		return !away.MayHold && connect.IsDial(err)
	})
}
