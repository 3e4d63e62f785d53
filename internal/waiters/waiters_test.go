package waiters_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

type registry = waiters.Registry[struct{}, int]

func newRegistry(t *testing.T) (*registry, context.CancelFunc) {
	t.Helper()
	life, end := context.WithCancel(t.Context())
	return waiters.New[struct{}, int](life), end
}

var errCause = errors.New("the caller gave up")

// A request whose caller gives up is not executed unless a batch has taken it, and only then may it
// have worked.
func TestWithdrawnRequest(t *testing.T) {
	t.Parallel()
	for name, taken := range map[string]bool{"queued": false, "taken": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, giveUp := context.WithCancelCause(t.Context())
			var r waiters.Request
			r.Op = "op"
			r.Init()
			if taken && !r.Take() {
				t.Fatal("the request cannot be taken")
			}
			giveUp(errCause)
			err := r.Wait(ctx, t.Context(), func(op string, mayHold bool, err error) error {
				if op != "op" || mayHold != taken || !errors.Is(err, errCause) {
					t.Errorf("%s, %t, %v", op, mayHold, err)
				}
				return backend.ErrUnavailable
			})
			if !errors.Is(err, backend.ErrUnavailable) || r.Take() || r.Wanted() {
				t.Errorf("%v; wanted %t", err, r.Wanted())
			}
			if taken {
				r.Answer(nil) // no caller waits for it
			}
		})
	}
}

// An answer that is there is returned, also when the caller gives up or the backend is closed.
func TestAnsweredRequest(t *testing.T) {
	t.Parallel()
	ended, end := context.WithCancel(t.Context())
	end()
	answered := func() *waiters.Request {
		r := new(waiters.Request)
		r.Init()
		r.Take()
		r.Answer(backend.ErrLost)
		return r
	}
	for range 100 {
		if err := answered().Wait(ended, t.Context(), nil); !errors.Is(err, backend.ErrLost) {
			t.Fatal(err)
		}
	}
	r := new(waiters.Request)
	r.Init()
	if err := r.Wait(t.Context(), ended, nil); !errors.Is(err, backend.ErrClosed) || r.Take() {
		t.Errorf("%v", err)
	}
}

var request = backend.AcquireRequest{Name: "n", Lease: "l", Session: "s"}

// A waiter is registered from Add until its call returns, and gets the first verdict.
func TestWaiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, end := newRegistry(t)
		acquire := func(ctx context.Context) error {
			grant, err := g.Acquire(ctx, &request, func(w *waiters.Waiter[struct{}]) (backend.Grant, bool, error) {
				g.Add(w)
				g.Add(w)
				return backend.Grant{}, true, nil
			})
			if err == nil && grant.Token != 7 {
				t.Errorf("%+v", grant)
			}
			return err
		}
		first := make(chan error, 1)
		go func() { first <- acquire(t.Context()) }()
		synctest.Wait()
		k := lockstate.Key{Name: "n", ID: "l"}
		ws := g.Of(k)
		if len(ws) != 1 || !slices.Equal(g.Leases(), []lockstate.Key{k}) {
			t.Fatalf("%v wait", ws)
		}
		ws[0].Give(waiters.Verdict{Grant: backend.Grant{Token: 7}})
		ws[0].Give(waiters.Verdict{Err: backend.ErrLost})
		if err := <-first; err != nil {
			t.Error(err)
		}
		g.Add(ws[0]) // a batch that was repeated
		if n, _ := g.Len(); n != 0 {
			t.Errorf("%d leases have waiters after the call", n)
		}
		ctx, giveUp := context.WithCancelCause(t.Context())
		giveUp(errCause)
		if err := acquire(ctx); !errors.Is(err, errCause) {
			t.Error(err)
		}
		end()
		if err := acquire(t.Context()); !errors.Is(err, backend.ErrClosed) {
			t.Error(err)
		}
	})
}

// A timed lease that expired on the way is not returned: C14.
func TestExpiredOnTheWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, _ := newRegistry(t)
		req := backend.AcquireRequest{Name: "n", Lease: "l", Timed: true}
		for took, want := range map[time.Duration]error{time.Second - 1: nil, time.Second: backend.ErrLost} {
			_, err := g.Acquire(t.Context(), &req, func(*waiters.Waiter[struct{}]) (backend.Grant, bool, error) {
				asked := time.Now()
				time.Sleep(took)
				return backend.Grant{Asked: asked, Left: time.Second}, false, nil
			})
			if !errors.Is(err, want) {
				t.Errorf("after %s: %v", took, err)
			}
		}
	})
}

// A loss is reported once, and a lease whose loss was reported is never granted again, neither by a call
// that begins afterwards nor by one in progress.
func TestLostIsFinal(t *testing.T) {
	t.Parallel()
	g, _ := newRegistry(t)
	var told []backend.Loss
	done := g.Listen("s", func(x backend.Loss) { told = append(told, x) })
	g.Opened("s", 5)
	done()
	loss := backend.Loss{Session: "s", Lease: "l"}
	ask := func(*waiters.Waiter[struct{}]) (backend.Grant, bool, error) {
		g.Report(loss)
		g.Report(loss)
		return backend.Grant{}, false, nil
	}
	if _, err := g.Acquire(t.Context(), &request, ask); !errors.Is(err, backend.ErrLost) {
		t.Error(err)
	}
	if _, err := g.Acquire(t.Context(), &request, nil); !errors.Is(err, backend.ErrLost) {
		t.Error(err)
	}
	if len(told) != 1 {
		t.Errorf("%v", told)
	}
	g.Report(backend.Loss{Session: "s"})
	if listens, _ := g.Listens("s"); listens || len(told) != 2 {
		t.Errorf("%v, listens %t", told, listens)
	}
}

// A listener remains if one of the calls that open the session succeeds, and only then. Sessions that the
// store may not have yet are not read.
func TestListeners(t *testing.T) {
	t.Parallel()
	g, _ := newRegistry(t)
	one, two := g.Listen("s", nil), g.Listen("s", nil)
	one()
	if listens, open := g.Listens("s"); !listens || open {
		t.Errorf("listens %t, open %t", listens, open)
	}
	for id := range g.Sessions() {
		t.Errorf("%s is not open", id)
	}
	g.Opened("s", 5)
	g.Opened("other", 5)
	two()
	for id, own := range g.Sessions() {
		if id != "s" || own != 5 {
			t.Errorf("%s, %d", id, own)
		}
	}
	g.Listen("refused", nil)()
	if all := g.Listened(); !slices.Equal(all, []backend.SessionID{"s"}) {
		t.Errorf("%q listen", all)
	}
	g.Forget("s")
	if _, n := g.Len(); n != 0 {
		t.Errorf("%d listen", n)
	}
}
