package server

import (
	"errors"
	"net/http"
	"slices"
	"sync"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// losses are the last leases that were taken from their holders, as far as this server knows: those that were broken
// through it, and those that its watch of the backend reported. It watches only while there is an event stream, because
// watching has a cost on some stores.
type losses struct {
	mu   sync.Mutex
	last []backend.Event // the latest last
}

const mostLosses = 200

// note keeps a loss, once: a break through this server is reported by the watch, too.
func (l *losses) note(e backend.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := func(k backend.Event) bool { return k.Name == e.Name && k.Lease == e.Lease && k.Token == e.Token }
	if slices.ContainsFunc(l.last, known) {
		return
	}
	if len(l.last) == mostLosses {
		l.last = slices.Delete(l.last, 0, 1)
	}
	l.last = append(l.last, e)
}

func (l *losses) all() []backend.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.last)
}

// explain adds to the error of a lease that is lost why it was broken, if that is known here: a store tells the holder of
// a timed lease only that it has ended.
func (l *losses) explain(k leaseKey, err error) error {
	if _, known := errors.AsType[*holdfast.LostError](err); known || !errors.Is(err, backend.ErrLost) {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range slices.Backward(l.last) {
		if e.Kind == backend.EventBroken && e.Name == k.name && e.Lease == k.lease {
			return &holdfast.LostError{Name: e.Name, Token: e.Token, Cause: holdfast.CauseBroken, Reason: e.Reason}
		}
	}
	return err
}

// recentLosses serves GET /v1/losses. It leaves out the locks that the caller may not see.
func (s *Server) recentLosses(w http.ResponseWriter, r *request) {
	out := wire.Losses{Losses: []wire.Loss{}}
	for _, e := range s.losses.all() {
		if !s.allowed(r, e.Name) {
			continue
		}
		s.viewOf(r, e.Name).hideEvent(&e)
		out.Losses = append(out.Losses, wire.Loss{Kind: string(e.Kind), Event: wire.FromEvent(e)})
	}
	s.write(w, r, http.StatusOK, out)
}
