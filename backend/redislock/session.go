package redislock

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

// session is what this Backend knows of a session that was opened through it.
type session struct {
	lost func(backend.Loss)
	told []string                   // broken leases that a renewal returned, to be acknowledged by the next
	thin map[backend.LeaseID]string // the records of its leases that were granted the short way; guarded by Backend.mu
	open bool                       // the server has confirmed it

	// Guarded by Backend.mu.
	ttl   time.Duration // at least
	until time.Time     // it cannot have expired before; zero: unknown
}

// confirmed records that the server has set the end of the session, on a request that was sent
// at that instant. mu is held.
func (s *session) confirmed(asked time.Time) {
	const drift = 100 // clocks differ by less than 1 in so many
	if until := asked.Add(s.ttl - s.ttl/drift); until.After(s.until) {
		s.until = until
	}
}

// lives reports whether the session cannot have expired. The monotonic clock stands still while
// the machine is suspended, and the other one may be set back: both must agree. mu is held.
func (s *session) lives() bool {
	now := time.Now()
	return now.Before(s.until) && now.Round(0).Before(s.until.Round(0))
}

// tell may be called with or without Backend.mu held: lost does not block.
func (s *session) tell(l backend.Loss) {
	if s.lost != nil {
		s.lost(l)
	}
}

// OpenSession creates the session, or confirms it. See backend.Backend. If req.Lost is set,
// the Backend is subscribed to losses before the session exists.
func (b *Backend) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	const op = "open session"
	if err := req.Validate(b.caps); err != nil {
		return err
	}
	if b.gone.Has(req.ID) && b.base.Err() == nil {
		return backend.ErrSessionLost
	}
	channel := ""
	if req.Lost != nil {
		channel = b.channel
		if err := b.listen(ctx, op); err != nil {
			return err
		}
	}
	b.uses(req.TTL)
	s, known := b.remember(req)
	answer, asked, err := b.engine.do(ctx, true, "session.open", string(req.ID), program.Millis(req.TTL), channel)
	if err != nil {
		if !known {
			b.forgetSession(req.ID)
		}
		return toKind(op, err)
	}
	d := decode(answer)
	if answer[0].S != "OK" {
		b.forgetSession(req.ID)
		return refusal(op, &d, "", 0)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sessions[req.ID] != s {
		// It was lost, or ended, while it was being confirmed.
		return backend.ErrSessionLost
	}
	s.open, s.ttl = true, req.TTL
	s.confirmed(asked)
	return nil
}

// remember registers the session before anything can be pushed about it. It reports whether
// it was registered already.
func (b *Backend) remember(req backend.SessionRequest) (*session, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, known := b.sessions[req.ID]
	if !known {
		s = &session{ttl: req.TTL}
		b.sessions[req.ID] = s
	}
	s.lost = req.Lost
	s.ttl, s.until = min(s.ttl, req.TTL), time.Time{} // it may end earlier from now on
	return s, known
}

func (b *Backend) forgetSession(id backend.SessionID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.sessions, id)
	b.final.Drop(id)
}

// EndSession releases everything that belongs to the session, with one request for each 5,000
// leases. The session ends with the first of them. See backend.Backend.
func (b *Backend) EndSession(ctx context.Context, id backend.SessionID) error {
	const op = "end session"
	if err := backend.ValidateSessionID(id); err != nil {
		return err
	}
	thin := b.thinOf(id)
	for first := true; ; first = false {
		n := min(len(thin), endAtOnce)
		answer, _, err := b.engine.do(ctx, false, "session.end", append([]string{string(id), itoa(n)}, thin[:n]...)...)
		if err != nil {
			return ofPart(first, op, toKind(op, err))
		}
		thin = thin[n:]
		d := decode(answer[1:])
		if d.Int() == 1 && len(thin) == 0 || d.Err != nil {
			b.forgetSession(id)
			return toKind(op, d.Err)
		}
	}
}

// endAtOnce is the number of leases granted the short way that one operation releases.
const endAtOnce = 5000

// thinOf returns the records of the session's leases that were granted the short way.
func (b *Backend) thinOf(id backend.SessionID) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.sessions[id]; s != nil {
		return slices.Collect(maps.Values(s.thin))
	}
	return nil
}

// renewAtOnce is the number of timed leases that one operation renews.
const renewAtOnce = 1000

// Renew extends the session and the timed leases. It takes one request for each 1,000 timed
// leases, and at least one, whatever the number of leases under the session. Losses are
// acknowledged by the next call if all requests of this one worked. See backend.Backend.
func (b *Backend) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	if err := req.Validate(b.caps); err != nil {
		return backend.RenewResult{}, err
	}
	acks := b.told(req.Session)
	n := min(len(req.Leases), renewAtOnce)
	result, asked, err := b.renew(ctx, backend.RenewRequest{Session: req.Session, Leases: req.Leases[:n]}, acks)
	if err != nil {
		return backend.RenewResult{}, err
	}
	for part := range slices.Chunk(req.Leases[n:], renewAtOnce) {
		r, _, err := b.renew(ctx, backend.RenewRequest{Leases: part}, nil)
		if err != nil {
			return backend.RenewResult{}, ofPart(false, opRenew, err)
		}
		result.Leases = append(result.Leases, r.Leases...)
	}
	result.SessionLost = result.SessionLost || b.gone.Has(req.Session)
	b.renewed(req.Session, result, acks, asked)
	return result, nil
}

const opRenew = "renew"

// ofPart is the error of one request of several. Those before it worked.
func ofPart(first bool, op string, err error) error {
	if first {
		return err
	}
	return backend.PartDone(backendName, op, err)
}

// renew sends one request. It also returns when that was sent.
func (b *Backend) renew(ctx context.Context, req backend.RenewRequest, acks []string) (backend.RenewResult, time.Time, error) {
	args := append([]string{string(req.Session), itoa(len(acks))}, acks...)
	args = append(args, itoa(len(req.Leases)))
	for _, l := range req.Leases {
		args = append(args, l.Name, string(l.Lease), program.Millis(l.TTL))
		b.uses(l.TTL)
	}
	answer, asked, err := b.engine.do(ctx, true, opRenew, args...)
	if err != nil {
		return backend.RenewResult{}, asked, toKind(opRenew, err)
	}
	result, err := decodeRenewal(answer[1:], req)
	if err != nil {
		return backend.RenewResult{}, asked, toKind(opRenew, err)
	}
	for i, l := range result.Leases {
		if req.Leases[i].TTL == 0 && l.Err == nil {
			b.uses(l.Left) // its own TTL, which is known only now
		}
	}
	return result, asked, nil
}

func decodeRenewal(answer []reply, req backend.RenewRequest) (backend.RenewResult, error) {
	var result backend.RenewResult
	d := decode(answer)
	if req.Session == "" {
		d.Text()
	} else {
		result.SessionLost = d.Int() == 0
	}
	if list := d.Text(); list != "" && req.Session != "" {
		for line := range strings.SplitSeq(list, "\n") {
			lease, reason, _ := strings.Cut(line, "\t")
			result.Lost = append(result.Lost, backend.Loss{
				Session: req.Session, Lease: backend.LeaseID(lease), Cause: backend.CauseBroken, Reason: reason,
			})
		}
	}
	for range req.Leases {
		in := decode(d.Items())
		switch in.Text() {
		case "OK":
			result.Leases = append(result.Leases, backend.Renewal{Token: in.Token(), Left: in.Micros()})
		case "LOST":
			result.Leases = append(result.Leases, backend.Renewal{Err: backend.ErrLost})
		default:
			return backend.RenewResult{}, &sentError{sent: true, err: program.ErrReply}
		}
		if in.Err != nil {
			return backend.RenewResult{}, &sentError{sent: true, err: in.Err}
		}
	}
	if d.Err != nil {
		return backend.RenewResult{}, &sentError{sent: true, err: d.Err}
	}
	return result, nil
}

// told returns the losses that the last renewal returned.
func (b *Backend) told(id backend.SessionID) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.sessions[id]; s != nil {
		return s.told
	}
	return nil
}

// renewed records a renewal that was sent at that instant, and the losses that it returned.
func (b *Backend) renewed(id backend.SessionID, r backend.RenewResult, acks []string, asked time.Time) {
	if id == "" {
		return
	}
	if r.SessionLost {
		b.forgetSession(id)
		return
	}
	b.final.Add(r.Lost...)
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.sessions[id]; s != nil {
		s.confirmed(asked)
		if len(r.Lost) == 0 && len(acks) == 0 {
			return
		}
		s.told = nil
		for _, l := range r.Lost {
			s.told = append(s.told, string(l.Lease))
			delete(s.thin, l.Lease)
		}
	}
}
