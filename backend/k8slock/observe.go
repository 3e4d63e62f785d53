package k8slock

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

const (
	// suspicious is for how long more than its TTL a session must be unrenewed, by the clocks of the API
	// servers, before a request that does not wait observes it.
	suspicious = time.Minute
	// observing is for how long such a request observes a session: shorter than a client waits for an answer.
	observing = 5 * time.Second
)

// observation is for how long processes have observed that a session was not renewed.
type observation struct {
	Session backend.SessionID `json:"s"`
	Version uint64            `json:"v"` // of its object
	For     time.Duration     `json:"d"`
}

// observe ends a dead session that a request that does not wait was refused because of, and reports whether it
// has ended one. Such a request may come from a new process each time, which sees no session unrenewed for its
// TTL. So each of them observes a session for a while, and adds that to what those before it have observed.
// A process counts by its own monotonic clock, after it has read the sum, and adds only to the sum that it has
// read: the periods do not overlap, and all are after the last renewal. The API server refuses to end the
// session if there was a newer one. The clocks of the API servers only say which session is worth the time.
func (b *Backend) observe(ctx context.Context, lock string) bool {
	s, before := b.suspect(objectName(lock))
	begun := time.Now()
	if s == nil {
		return false
	}
	now := observation{Session: s.session.ID, Version: s.object.version()}
	if before.Session == now.Session && before.Version == now.Version {
		now.For = before.For
	}
	life := s.session.TTL + margin(s.session.TTL)
	timer := time.NewTimer(min(life-now.For, observing))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return false
	}
	if now.For += time.Since(begun); now.For >= life {
		b.bury(s)
		return b.ended.Has(s.session.ID)
	}
	_ = b.do(ctx, lock, &change{apply: func(r *record) bool { // if it fails, the next request observes the same again
		if r.Observed == before {
			r.Observed, r.changed = now, true
		}
		return false
	}})
	return false
}

// suspect returns the first session in the queue of a lock that seems to be dead, and what was observed of the
// queue. It returns nil if there is none.
func (b *Backend) suspect(at string) (*seen, observation) {
	now := b.rest.clock.now()
	m := &b.cache
	m.mu.Lock()
	defer m.mu.Unlock()
	lock := m.objects[at]
	if lock == nil || lock.record == nil {
		return nil, observation{}
	}
	for _, e := range lock.record.Queue {
		s := m.objects[sessionName(e.Session)]
		if s == nil || s.session == nil {
			continue
		}
		if last := s.object.written(); !last.IsZero() && now.Sub(last) > s.session.TTL+suspicious {
			return s, lock.record.Observed
		}
	}
	return nil, observation{}
}
