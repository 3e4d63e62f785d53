package redislock

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

// Acquire takes the lock, or waits for it in the queue. It costs one request, and one
// notification for a lease that waited. Another request follows for a timed lease that waited,
// to learn its remaining time, and with Config.Replicas for every lease that waited. See
// backend.Backend.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	if err := req.Validate(b.caps); err != nil {
		return backend.Grant{}, err
	}
	if b.final.Has(req.Session, req.Lease) && b.base.Err() == nil {
		return backend.Grant{}, backend.ErrLost
	}
	g, err := b.acquire(ctx, req)
	if err == nil && b.final.Has(req.Session, req.Lease) {
		return backend.Grant{}, backend.ErrLost // an earlier grant of it was lost
	}
	return g, err
}

func (b *Backend) acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	if req.Timed {
		b.uses(req.TTL)
	}
	if req.Wait {
		return b.wait(ctx, req)
	}
	o, err := b.ask(ctx, req, "")
	if err != nil {
		return backend.Grant{}, err
	}
	return b.conclude(req, o, false)
}

// Names of operations.
const opAcquire, opRelease, opCheck = "acquire", "release", "check"

// ask sends the request. If its outcome is unknown, the lease is in doubt from then on.
func (b *Backend) ask(ctx context.Context, req backend.AcquireRequest, channel string) (outcome, error) {
	t := terms{
		session: string(req.Session), ttl: "0", limit: strconv.Itoa(req.Limit), wait: flag(req.Wait),
		mode: "x", permits: "1", channel: channel, owner: req.Owner, note: req.Note,
	}
	if req.Mode == backend.Shared {
		t.mode, t.permits = "s", strconv.Itoa(max(1, req.Permits))
	}
	if req.Timed {
		t.ttl = program.Millis(req.TTL)
	}
	c := &call{op: opAcquire, terms: t, name: req.Name, lease: string(req.Lease)}
	o := b.engine.await(ctx, c, false)
	if o.err == nil {
		if o.answer == nil && !req.Timed {
			b.tookThin(req.Session, req.Lease, c.member(o.granted))
		}
		return o, nil
	}
	err := toKind(opAcquire, o.err)
	var away *backend.UnavailableError
	if errors.As(err, &away) && away.MayHold {
		b.doubt(req)
	}
	return outcome{}, err
}

// waits reports whether the lease of the answer is in the queue.
func (o *outcome) waits() bool { return o.answer != nil && o.answer[0].S == "WAIT" }

// conclude returns the grant that is the answer, or the error for it. byTimer: a waiter asked because of its alarm.
func (b *Backend) conclude(req backend.AcquireRequest, o outcome, byTimer bool) (backend.Grant, error) {
	g := o.granted
	if o.answer != nil {
		if o.answer[0].S != "G" {
			return backend.Grant{}, refusal(opAcquire, new(decode(o.answer)), req.Name, req.Limit)
		}
		d := decode(o.answer[1:])
		if g = d.grant(); d.Err != nil {
			b.doubt(req)
			return backend.Grant{}, toKind(opAcquire, &sentError{sent: true, err: d.Err})
		}
	}
	grant := g.grant(o.asked)
	grant.ByTimer = byTimer && !g.fresh // the notification of a grant that this very request made was not missed
	return grant, nil
}

const (
	doubtFor   = 10 * time.Minute // longer than a request can be in progress
	manyDoubts = 1000
)

// doubt records that a request to acquire the lease may still be in progress: when the lease is released, that request
// must not grant it again.
func (b *Backend) doubt(req backend.AcquireRequest) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.doubts) >= manyDoubts {
		maps.DeleteFunc(b.doubts, func(_ backend.LeaseID, until time.Time) bool { return until.Before(now) })
	}
	b.doubts[req.Lease] = now.Add(doubtFor)
}

// tookThin remembers the record of a lease that was granted the short way, so that it can be
// released by it. A session that was opened elsewhere releases its leases the long way.
func (b *Backend) tookThin(id backend.SessionID, lease backend.LeaseID, record string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.sessions[id]; s != nil {
		if s.thin == nil {
			s.thin = make(map[backend.LeaseID]string)
		}
		s.thin[lease] = record
	}
}

// forgetThin returns the record of the lease if it was granted the short way, and forgets it.
// It also reports whether an acquire of the lease was never answered. When the session may have
// expired there is no record: what is left of the lease on the server may be garbage, and a
// release of it must be answered with ErrLost.
func (b *Backend) forgetThin(req backend.ReleaseRequest) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	record := ""
	if s := b.sessions[req.Session]; s != nil {
		if s.lives() {
			record = s.thin[req.Lease]
		}
		delete(s.thin, req.Lease)
	}
	if !strings.HasPrefix(record, req.Name+"\n") {
		record = "" // of another lock
	}
	_, doubtful := b.doubts[req.Lease]
	return record, doubtful
}

// Release releases the lease. With req.Abandon, or when an acquire of the lease was never
// answered, the server records that the lease must not be granted any more, for the session's
// TTL and at least five minutes. See backend.Backend.
func (b *Backend) Release(ctx context.Context, req backend.ReleaseRequest) error {
	if err := req.Validate(); err != nil {
		return err
	}
	record, doubtful := b.forgetThin(req)
	thin, abandon := record, "0"
	switch {
	case req.Abandon:
		abandon, thin = "1", ""
	case doubtful:
		abandon, thin = "2", ""
	}
	o := b.engine.await(ctx, &call{
		op: opRelease, terms: terms{session: string(req.Session), abandon: abandon}, name: req.Name, lease: string(req.Lease), thin: thin,
	}, true)
	if o.err != nil {
		if e, ok := errors.AsType[*sentError](o.err); ok && !e.sent && record != "" {
			b.tookThin(req.Session, req.Lease, record) // for the next release, or the end of the session
		}
		return toKind(opRelease, o.err)
	}
	if doubtful {
		b.mu.Lock()
		delete(b.doubts, req.Lease)
		b.mu.Unlock()
	}
	if o.answer == nil || o.answer[0].S == "OK" {
		return nil
	}
	return refusal(opRelease, new(decode(o.answer)), req.Name, 0)
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func itoa[N int | int64](n N) string { return strconv.FormatInt(int64(n), 10) }
