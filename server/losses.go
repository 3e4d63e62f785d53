package server

import (
	"net/http"
	"slices"
	"sync"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// losses are the last leases that were taken from their holders, as far as this server knows: those that were broken
// through it, and those that its watch of the backend reported. It watches only while there is an event stream, because
// watching has a cost on some stores.
type losses struct {
	mu   sync.Mutex
	last []backend.Event // the latest last
	// broken has those of them that were broken and not granted again since, for their holders: a store tells the holder
	// of a timed lease only that it has ended.
	broken map[leaseKey]backend.Event
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
		if oldest := (leaseKey{l.last[0].Name, l.last[0].Lease}); l.broken[oldest].Token == l.last[0].Token { // and not a later grant
			delete(l.broken, oldest)
		}
		l.last = slices.Delete(l.last, 0, 1)
	}
	l.last = append(l.last, e)
	if l.broken == nil {
		l.broken = make(map[leaseKey]backend.Event)
	}
	delete(l.broken, leaseKey{e.Name, e.Lease})
	if e.Kind == backend.EventBroken {
		l.broken[leaseKey{e.Name, e.Lease}] = e
	}
}

func (l *losses) all() []backend.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.last)
}

// held forgets why a lease was broken: its ID is that of another grant now.
func (l *losses) held(k leaseKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.broken, k)
}

// explain adds to the error of a lease that is lost why it was broken, if that is known here.
func (l *losses) explain(k leaseKey, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.broken[k]
	if !ok {
		return err
	}
	return &backend.LossError{Cause: backend.CauseBroken, Reason: e.Reason}
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
