package wire

import (
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// FromLock converts the state of a lock as of now, with the lease IDs of waiters if leases is
// set.
func FromLock(l backend.LockInfo, now time.Time) Lock {
	w := Lock{Name: l.Name, Limit: l.Limit, Holders: FromHolders(l.Holders, now), Waiters: make([]Waiter, len(l.Waiters))}
	for i, x := range l.Waiters {
		w.Waiters[i] = Waiter{
			Owner: x.Owner, Shared: x.Mode == backend.Shared, Permits: max(1, x.Permits),
			Note: x.Note, Since: Time{x.Since}, Position: i + 1, Lease: string(x.Lease),
		}
	}
	return w
}

// FromHolders converts holders as of now.
func FromHolders(hs []backend.Holder, now time.Time) []Holder {
	out := make([]Holder, len(hs))
	for i, h := range hs {
		out[i] = Holder{
			Lease: string(h.Lease), Owner: h.Owner, Token: h.Token, Shared: h.Mode == backend.Shared,
			Permits: max(1, h.Permits), Note: h.Note, Since: Time{h.Since}, ExpiresAt: Time{now.Add(h.Left)},
		}
	}
	return out
}

// Backend converts the state to that of package backend. now is the server's wall clock when
// it answered.
func (l Lock) Backend(now time.Time) backend.LockInfo {
	out := backend.LockInfo{Name: l.Name, Limit: l.Limit, Holders: ToHolders(l.Holders, now)}
	for _, h := range out.Holders {
		out.Token = max(out.Token, h.Token)
	}
	for _, w := range l.Waiters {
		out.Waiters = append(out.Waiters, backend.Waiter{
			Lease: backend.LeaseID(w.Lease), Owner: w.Owner, Mode: mode(w.Shared), Permits: w.Permits, Note: w.Note, Since: w.Since.Time,
		})
	}
	return out
}

// ToHolders converts holders to those of package backend. now is the server's wall clock when
// it answered.
func ToHolders(hs []Holder, now time.Time) []backend.Holder {
	var out []backend.Holder
	for _, h := range hs {
		out = append(out, backend.Holder{
			Lease: backend.LeaseID(h.Lease), Owner: h.Owner, Token: h.Token, Mode: mode(h.Shared), Permits: h.Permits,
			Note: h.Note, Since: h.Since.Time, Left: max(0, h.ExpiresAt.Sub(now)),
		})
	}
	return out
}

// FromEvent returns the data of an event.
func FromEvent(e backend.Event) Event {
	return Event{
		Name: e.Name, Lease: string(e.Lease), Owner: e.Owner, Shared: e.Mode == backend.Shared,
		Token: e.Token, Reason: e.Reason, At: Time{e.At},
	}
}

// Backend converts the event, of that kind, to that of package backend.
func (e Event) Backend(kind string) backend.Event {
	return backend.Event{
		Kind: backend.EventKind(kind), Name: e.Name, Lease: backend.LeaseID(e.Lease), Owner: e.Owner,
		Mode: mode(e.Shared), Token: e.Token, Reason: e.Reason, At: e.At.Time,
	}
}

// FromCapabilities returns those capabilities of a backend that hold over HTTP, within the
// bounds of the server.
func FromCapabilities(c backend.Capabilities, minTTL, maxTTL, maxWait time.Duration) *Capabilities {
	return &Capabilities{
		Shared: c.Shared, Permits: c.Permits, FIFO: c.FIFO, Push: c.Push, Watch: c.Watch, Durable: c.Durable,
		TokenKind: c.TokenKind, MinTTL: Duration(minTTL), MaxTTL: Duration(maxTTL), ExpiryLag: Duration(c.ExpiryLag), MaxWait: Duration(maxWait),
	}
}

func mode(shared bool) backend.Mode {
	if shared {
		return backend.Shared
	}
	return backend.Exclusive
}
