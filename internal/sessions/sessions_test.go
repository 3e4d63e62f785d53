package sessions_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/sessions"
)

var errStore = errors.New("the store is down")

// store is a store whose requests can be made to fail.
type store struct {
	down   atomic.Bool
	ends   atomic.Int64
	buried atomic.Int64
	delay  atomic.Int64 // of renewals
	asleep atomic.Bool  // the deadline is not looked at
}

type peer struct {
	*sessions.Session

	store *store
}

func (p *peer) fault() error {
	if p.store.down.Load() {
		return errStore
	}
	return nil
}

func (p *peer) Open(context.Context) error {
	if err := p.fault(); err != nil {
		return err
	}
	return p.Extend()
}

func (p *peer) Run() {
	if p.store.asleep.Load() {
		<-p.Life.Done()
		return
	}
	p.Keep(nil)
}

func (p *peer) Renew(context.Context) error {
	time.Sleep(time.Duration(p.store.delay.Load()))
	if err := p.fault(); err != nil {
		return err
	}
	return p.Extend()
}

func (p *peer) End(context.Context) error {
	p.store.ends.Add(1)
	return p.fault()
}

func (p *peer) Bury() bool {
	p.store.buried.Add(1)
	return p.fault() == nil
}

// open returns sessions in a store, and one of them that is open.
func open(t *testing.T, ttl time.Duration, lost func(backend.Loss)) (*sessions.Sessions[*peer], *store, backend.SessionRequest) {
	t.Helper()
	st := new(store)
	all := sessions.New(sessions.Config[*peer]{
		Caps: backend.Capabilities{Name: "store", Sessions: true, LossPush: true, MinTTL: time.Millisecond, MaxTTL: time.Hour},
		New:  func(s *sessions.Session) *peer { return &peer{s, st} },
		Fail: func(_ context.Context, op string, err error, changes bool) error {
			if errors.Is(err, errStore) {
				err = &backend.UnavailableError{Backend: "store", Op: op, MayHold: changes, Err: err}
			}
			return err
		},
	})
	t.Cleanup(all.Close)
	req := backend.SessionRequest{ID: backend.NewSessionID(), TTL: ttl, Lost: lost}
	if err := all.OpenSession(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	return all, st, req
}

// TestReport: a loss is reported once, and by each renewal for one TTL.
func TestReport(t *testing.T) {
	t.Parallel()
	var told atomic.Int64
	all, _, req := open(t, time.Hour, func(backend.Loss) { told.Add(1) })
	p, err := all.Get(req.ID)
	if err != nil {
		t.Fatal(err)
	}
	lease := backend.NewLeaseID()
	if p.IsLost(lease) {
		t.Error("a lease is lost that was not reported")
	}
	forgotten := 0
	for range 2 {
		p.Report(backend.Loss{Lease: lease, Cause: backend.CauseGone}, func() {
			if forgotten++; !p.IsLost(lease) || told.Load() > 0 {
				t.Error("the lease is forgotten before its loss is final, or after it was reported")
			}
		})
	}
	if n := told.Load(); n != 1 || forgotten != 1 {
		t.Errorf("reported %d times, forgotten %d times; want 1", n, forgotten)
	}
	for range 2 {
		res, err := all.Renew(t.Context(), backend.RenewRequest{Session: req.ID})
		if err != nil || len(res.Lost) != 1 || res.Lost[0].Lease != lease || res.Lost[0].Session != req.ID {
			t.Errorf("a renewal: %+v, %v; want one loss", res, err)
		}
	}
}

// TestEndIsRetried: an end that the store has not confirmed is an error, and is tried again.
func TestEndIsRetried(t *testing.T) {
	t.Parallel()
	all, st, req := open(t, time.Hour, func(l backend.Loss) { t.Errorf("reported %+v", l) })
	st.down.Store(true)
	if err := all.EndSession(t.Context(), req.ID); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("the end of a session while the store is down: %v", err)
	}
	if _, err := all.Get(req.ID); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("a session that was ended: %v", err)
	}
	if err := all.OpenSession(t.Context(), req); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("a session that was ended is opened: %v", err)
	}
	st.down.Store(false)
	for range 2 {
		if err := all.EndSession(t.Context(), req.ID); err != nil {
			t.Error(err)
		}
	}
	if n := st.ends.Load(); n != 2 {
		t.Errorf("%d requests; want 2: one that failed, one that succeeded", n)
	}
}

// TestLostRenewal: a renewal without an answer may have worked.
func TestLostRenewal(t *testing.T) {
	t.Parallel()
	all, st, req := open(t, time.Hour, nil)
	st.down.Store(true)
	_, err := all.Renew(t.Context(), backend.RenewRequest{Session: req.ID})
	if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold {
		t.Errorf("a renewal while the store is down: %v", err)
	}
}

// TestFailedOpen: an open that failed leaves nothing here, and is cleaned up in the store.
func TestFailedOpen(t *testing.T) {
	t.Parallel()
	all, st, first := open(t, time.Hour, nil)
	st.down.Store(true)
	req := backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Hour}
	if err := all.OpenSession(t.Context(), req); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("an open while the store is down: %v", err)
	}
	st.down.Store(false)
	if err := all.OpenSession(t.Context(), req); err != nil {
		t.Error(err)
	}
	all.Close()
	if n := st.buried.Load(); n != 3 {
		t.Errorf("%d sessions were ended in the store; want 3", n)
	}
	if err := all.OpenSession(t.Context(), first); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("an open after Close: %v", err)
	}
}

// TestExpires: a session that is not renewed ends at its TTL, and is reported as lost.
func TestExpires(t *testing.T) {
	t.Parallel()
	lost := make(chan backend.Loss, 1)
	all, st, req := open(t, 50*time.Millisecond, func(l backend.Loss) { lost <- l })
	select {
	case l := <-lost:
		if l.Session != req.ID || l.Lease != "" || l.Cause != backend.CauseExpired {
			t.Errorf("reported %+v; want the session, expired", l)
		}
	case <-time.After(10 * time.Second):
		t.Error("the session has not ended")
	}
	res, err := all.Renew(t.Context(), backend.RenewRequest{Session: req.ID})
	if err != nil || !res.SessionLost {
		t.Errorf("a renewal: %+v, %v; want a lost session", res, err)
	}
	all.Close()
	if st.buried.Load() == 0 {
		t.Error("the session was not ended in the store")
	}
}

// TestLateRenewal: a session whose renewal was answered after its deadline stays lost, also before
// anything here has noticed the deadline: a caller may have been told.
func TestLateRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all, st, _ := open(t, time.Hour, nil)
		st.asleep.Store(true)
		req := backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute}
		if err := all.OpenSession(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		for _, delay := range []time.Duration{2 * req.TTL, 0} {
			st.delay.Store(int64(delay))
			res, err := all.Renew(t.Context(), backend.RenewRequest{Session: req.ID})
			if err != nil || !res.SessionLost {
				t.Errorf("a renewal that was answered after %s: %+v, %v; want a lost session", delay, res, err)
			}
		}
		all.Close()
	})
}
