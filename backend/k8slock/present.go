package k8slock

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// present writes those locks of the session again whose holder client-go would otherwise stop
// respecting. It writes as many as there is time for, as the others can wait for the next renewal.
// A renewal counts only if those locks were written that client-go could take before the session
// ends.
func (s *session) present(ctx context.Context, ttl time.Duration) error {
	const parts = 12 // one part of the TTL is for locks that can wait
	type late struct {
		lock string
		left time.Duration // after a renewal, until client-go could take it; below 0: it is pressing
	}
	m := &s.b.cache
	var due []late
	m.mu.Lock()
	for at, leases := range m.held {
		seen := m.objects[at]
		if seen == nil || seen.record == nil {
			continue
		}
		d, age := time.Duration(seen.object.Spec.LeaseDurationSeconds)*time.Second, time.Since(seen.since)
		for _, owner := range leases {
			if owner == s && age > d/3 {
				due = append(due, late{seen.lock, d - d/8 - age - ttl})
				break
			}
		}
	}
	m.mu.Unlock()
	slices.SortFunc(due, func(a, b late) int { return cmp.Compare(a.left, b.left) })
	unhurried, cancel := context.WithTimeout(ctx, ttl/parts)
	defer cancel()
	for _, l := range due {
		pressing, within := l.left < 0, unhurried
		if pressing {
			within = ctx
		}
		c := &change{pressing: pressing, apply: func(r *record) bool { r.changed = r.changed || r.out() > 0; return false }}
		if err := s.b.do(within, l.lock, c); err != nil && pressing {
			return err
		}
		if !pressing && unhurried.Err() != nil {
			break
		}
	}
	return nil
}
