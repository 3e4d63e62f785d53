package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/acquire"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/observe"
)

// ask is the checked content of an acquire request.
type ask struct {
	name   string
	stored backend.LeaseID // the ID of the lease in the store; Lease is what the client calls it
	mark   string          // of the leases of the principal
	// theirs: the client made the lease ID; see the package documentation.
	theirs bool
	keep   time.Duration // how long to keep the place in the queue after the request
	wire.AcquireRequest
}

// acquire serves POST /v1/locks/{name}.
func (s *Server) acquire(w http.ResponseWriter, r *request) {
	a, err := s.parseAcquire(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	end, err := s.countAcquire(r, leaseKey{a.name, a.stored})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer r.answer.before(end)()
	if a.Wait > 0 {
		leave, ok := s.queue.join(a.name, a.stored, s.cfg.Limits.WaitersPerLock)
		if !ok {
			s.metrics.QuotaRejected(observe.QuotaWaitersPerLock)
			s.fail(w, r, &overloadError{
				status: http.StatusTooManyRequests,
				what:   fmt.Sprintf("at most %d requests can wait for one lock on this server", s.cfg.Limits.WaitersPerLock),
			})
			return
		}
		defer leave()
		out, err := s.admitLong(r, s.admission.waits, s.quotaOf(r).Waiters)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		defer r.answer.before(out)()
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.stopping, func() { cancel(errStopping) })()
	if a.theirs {
		s.acquireTheirs(ctx, w, r, a)
		return
	}
	s.acquireOwn(ctx, w, r, a)
}

func (s *Server) parseAcquire(r *request) (ask, error) {
	a := ask{name: r.name, mark: r.mark, AcquireRequest: wire.AcquireRequest{TTL: wire.Duration(s.cfg.DefaultTTL), Limit: 1, Permits: 1}}
	if err := wire.Decode(r.body, &a.AcquireRequest); err != nil {
		return a, err
	}
	if err := s.checkAsk(&a); err != nil || !a.theirs {
		return a, err
	}
	err := s.authorize(r, Action{Verb: Acquire, Name: a.name, Lease: backend.LeaseID(a.Lease)})
	if err != nil {
		return a, err
	}
	a.stored = r.stored(backend.LeaseID(a.Lease))
	a.keep, err = s.keepPlace(r.Header.Get(wire.HeaderKeepPlace))
	return a, err
}

// checkAsk checks everything but the name. It sets theirs if the client made a lease ID.
func (s *Server) checkAsk(a *ask) error {
	limits := s.cfg.Limits
	switch {
	case a.Wait < 0 || a.Wait > wire.Duration(limits.Wait):
		return invalid("wait", a.Wait.String(), fmt.Sprintf("0s to %s; to wait longer, repeat the request", limits.Wait))
	case a.Limit < 0 || a.Limit > backend.MaxLimit:
		return invalid("limit", strconv.Itoa(a.Limit), fmt.Sprintf("1 to %d", backend.MaxLimit))
	case a.Permits < 1 || a.Permits > max(1, a.Limit):
		return invalid("permits", strconv.Itoa(a.Permits), fmt.Sprintf("1 to the limit, %d", max(1, a.Limit)))
	}
	if err := s.checkTTL(time.Duration(a.TTL)); err != nil {
		return err
	}
	if err := backend.ValidateText("note", a.Note, backend.MaxNoteLen); err != nil {
		return err
	}
	if err := backend.ValidateText("owner", a.Owner, backend.MaxOwnerLen); err != nil {
		return err
	}
	if a.Lease == "" {
		return nil
	}
	a.theirs = true
	return backend.ValidateLeaseID(backend.LeaseID(a.Lease))
}

func (s *Server) checkTTL(ttl time.Duration) error {
	return backend.Capabilities{MinTTL: s.cfg.Limits.MinTTL, MaxTTL: s.cfg.Limits.MaxTTL}.ValidateTTL(ttl)
}

func (s *Server) keepPlace(header string) (time.Duration, error) {
	if header == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(header)
	if err != nil || d < 0 {
		return 0, invalid(wire.HeaderKeepPlace, short(header), `a duration like "10s"`)
	}
	return min(d, s.cfg.PlaceTTL), nil
}

// acquireOwn takes the lock under a lease ID that the server made. No client knows that ID, so
// a grant that was not sent is released. As soon as a part of the answer may have left, the
// lease is the client's: it may have read the answer and hung up before the server learns that
// it was sent.
func (s *Server) acquireOwn(ctx context.Context, w http.ResponseWriter, r *request, a ask) {
	c, err := s.take(ctx, a, s.session)
	if err != nil {
		err = cause(ctx, err)
		s.noteUnknown(r, a, err)
		s.fail(w, r, s.neverHad(err))
		return
	}
	a.stored = c.live.ID
	if err := s.stillMay(r, a, c); err != nil {
		s.fail(w, r, err)
		return
	}
	sent, err := s.answer(w, r, a, c)
	switch {
	case err == nil:
	case sent:
		s.metrics.Untold(observe.UntoldLeft)
		s.cfg.Logger.LogAttrs(ctx, levelWarn, "a grant may not have reached its client: the lease is left to expire", attrLock(a.name), attrError(err))
	default:
		s.metrics.Untold(observe.UntoldGivenBack)
		s.cfg.Logger.LogAttrs(ctx, slog.LevelInfo, "a grant was not sent to its client: the lease is released", attrLock(a.name), attrError(err))
		s.giveBack(a, c)
	}
}

// stillMay decides once more about a request that waited: its right, its token or its whole principal may have been
// removed in the meantime. Then the lease is released. That its token has expired since it arrived is no reason, and a
// store of identities that does not answer is none either.
func (s *Server) stillMay(r *request, a ask, c *claim) error {
	const soon = time.Second // the answer of a store that was away may take longer
	if !c.grant.Waited && time.Since(r.arrived) < soon {
		return nil
	}
	s.identifyAgain(r)
	if errors.Is(r.unknown, ErrExpired) {
		r.unknown = nil // the principal is known, and may have lost its right
	}
	err := s.authorize(r, Action{Verb: Acquire, Name: a.name})
	if _, refused := errors.AsType[*refusal](err); !refused {
		return nil
	}
	s.giveBack(a, c)
	return err
}

// giveBack releases a lease whose grant was not sent to the client. No client knows its ID, so this
// server has to release it as soon as the backend is available again.
func (s *Server) giveBack(a ask, c *claim) {
	s.registry.ended(leaseKey{a.name, a.stored})
	req := backend.ReleaseRequest{Name: a.name, Lease: a.stored, Abandon: true}
	if c.live.Session != nil {
		req.Session = c.live.Session.ID
	}
	if s.settle(req, time.Duration(a.TTL)) {
		return
	}
	done := context.WithoutCancel(s.stopping) // the server is closed: here, then
	if err := s.agent.Patiently(done, func(ctx context.Context) error { return s.b.Release(ctx, req) }); err != nil && !errors.Is(err, backend.ErrLost) {
		s.cfg.Logger.LogAttrs(done, levelWarn, "a lease whose grant was not sent to its client is left to expire", attrLock(a.name), attrError(err))
	}
}

// settle releases a lease in the background, and reports whether it can.
func (s *Server) settle(req backend.ReleaseRequest, ttl time.Duration) bool {
	s.agent.Mu.Lock()
	defer s.agent.Mu.Unlock()
	return s.agent.Settle(req, nil, ttl) != nil
}

// noteUnknown logs a failed acquire whose outcome is unknown. The agent abandons its
// lease in the background.
func (s *Server) noteUnknown(r *request, a ask, err error) {
	op, ok := errors.AsType[*holdfast.OpError](err)
	if !ok || !op.MayHold {
		return
	}
	level := levelWarn
	if r.Context().Err() != nil || s.stopping.Err() != nil {
		level = slog.LevelInfo // the request was cancelled; nothing is wrong
	}
	s.cfg.Logger.LogAttrs(r.Context(), level, "the outcome of an acquire is unknown: its lease is abandoned", attrLock(a.name), attrError(err))
}

// neverHad converts the error of a lease that was granted and expired before its client
// received the grant. The client has lost nothing and may simply retry.
func (s *Server) neverHad(err error) error {
	if !errors.Is(err, backend.ErrLost) {
		return err
	}
	return &backend.UnavailableError{
		Backend: s.caps.Name, Op: "acquire",
		Err: fmt.Errorf("the lease was granted and ended before the client could be told: %v", err), //nolint:errorlint // it must not be told as a loss
	}
}

// acquireTheirs takes the lock under a lease ID that the client made. A wait has a session of
// its own. The session ends with the request, and the place in the queue ends with it. If the
// lock was not acquired and the client asked for it, the place is kept a little longer.
func (s *Server) acquireTheirs(ctx context.Context, w http.ResponseWriter, r *request, a ask) {
	unknown := false // whether the outcome of the try is unknown
	if a.Wait > 0 && (s.queue.alone(a.name) || s.quarantined()) {
		// A free lock is acquired without a session, which would cost more than all the rest.
		// In a quarantine no request waits in the queue: the client gets the error and retries.
		// The outcome of a try that was cut short is found by the wait, which uses the same
		// lease ID.
		asked := time.Now()
		within, cancel := context.WithTimeout(ctx, time.Duration(a.Wait))
		c, err := s.try(within, a)
		over := within.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !over && !errors.Is(err, backend.ErrHeld) {
			s.tellTheirs(ctx, w, r, a, c, err)
			return
		}
		unknown = !errors.Is(err, backend.ErrHeld) && *mayHold(err)
		a.Wait = max(wire.Duration(time.Millisecond), a.Wait-wire.Duration(time.Since(asked)))
	}
	if a.Wait == 0 {
		c, err := s.try(ctx, a)
		s.tellTheirs(ctx, w, r, a, c, err)
		return
	}
	session := s.agent.NewSession()
	c, err := s.take(ctx, a, session)
	if held, ok := errors.AsType[*backend.HeldError](err); ok {
		c, err = s.lookAgain(ctx, a, held)
	}
	if s.tellTheirs(ctx, w, r, a, c, s.stillUnknown(a, unknown, err)) {
		a.keep = 0
	} else if s.stopping.Err() != nil {
		session.Leave()
	}
	s.endPlace(a, session)
}

// stillUnknown marks an error as "the lease may be held" if an earlier call was not answered:
// whether the last call was ever sent says nothing about that one.
func (s *Server) stillUnknown(a ask, unknown bool, err error) error {
	if err == nil || !unknown {
		return err
	}
	if op, ok := errors.AsType[*holdfast.OpError](err); ok {
		op.MayHold = true
		return err
	}
	return &holdfast.OpError{Op: "acquire", Name: a.name, Backend: s.caps.Name, MayHold: true, Err: err}
}

// tellTheirs answers an acquire of a lease ID that the client made, and reports whether the
// client has the lock. The lease is the client's whether or not the answer reaches it.
func (s *Server) tellTheirs(ctx context.Context, w http.ResponseWriter, r *request, a ask, c *claim, err error) bool {
	if err == nil {
		err = s.stillMay(r, a, c)
	}
	if err != nil {
		s.fail(w, r, cause(ctx, err))
		return false
	}
	s.write(w, r, http.StatusOK, s.granted(w, r, a, c))
	return true
}

// lookAgain resolves a wait that has ended. The lease may have been granted just then;
// lookAgain then returns the grant. If the refusal names no holder, the outcome is unknown.
func (s *Server) lookAgain(ctx context.Context, a ask, held *backend.HeldError) (*claim, error) {
	if len(held.Holders) == 0 {
		return nil, &backend.UnavailableError{
			Backend: s.caps.Name, Op: "acquire", MayHold: true, Err: errors.New("the wait ended while the queue moved, or the backend did not answer"),
		}
	}
	all := held.Count <= len(held.Holders) // one of many holders may not be named
	if all && !slices.ContainsFunc(held.Holders, func(h backend.Holder) bool { return h.Lease == a.stored }) {
		return nil, held
	}
	c, err := s.try(ctx, a)
	if err == nil {
		c.grant.Waited = true // this try only found the grant
	}
	return c, s.stillUnknown(a, true, err)
}

// endPlace ends, in the background, the session of a request that waited, and with it the place in the
// queue. A place that is to be kept ends a little later. Until then it counts.
func (s *Server) endPlace(a ask, session *acquire.Session) {
	leave := s.queue.keep(a.name, a.stored)
	s.later(func(ctx context.Context) {
		defer leave()
		if a.keep > 0 && session.Open() && !retry.Until(a.keep, s.stopping.Done(), nil) {
			session.Leave()
			return
		}
		if err := session.End(ctx); err != nil {
			s.cfg.Logger.LogAttrs(ctx, levelWarn, "a place in the queue is left to expire", attrError(err))
		}
	})
}

// answer sends a grant. It reports whether a part of the answer may have reached the client. The
// error is nil when all of it was sent.
func (s *Server) answer(w http.ResponseWriter, r *request, a ask, c *claim) (bool, error) {
	grant := s.granted(w, r, a, c)
	if err := context.Cause(r.Context()); err != nil {
		return false, err
	}
	return s.writeChecked(w, r, http.StatusOK, grant)
}

// granted records a grant and returns the answer.
func (s *Server) granted(w http.ResponseWriter, r *request, a ask, c *claim) wire.Grant {
	if c.grant.Waited {
		w.Header().Set(wire.HeaderWaited, time.Since(r.arrived).Round(time.Millisecond).String())
		if took, ok := s.queue.handover(a.name); ok {
			s.metrics.HandedOver(took)
		}
	}
	return s.enterGrant(r, a, c)
}

// enterGrant records a grant, without the metrics of its wait, and returns the answer.
func (s *Server) enterGrant(r *request, a ask, c *claim) wire.Grant {
	now := time.Now()
	left := c.ends.Sub(now)
	known := a.Lease
	if !a.theirs {
		known = strings.TrimSuffix(string(a.stored), a.mark)
	}
	s.registry.granted(leaseKey{a.name, a.stored}, known, c.shared, left)
	s.losses.held(leaseKey{a.name, a.stored})
	// The client counts from before it sent the request, which was before it arrived.
	ttl := min(time.Duration(a.TTL), c.ends.Sub(r.arrived))
	return wire.Grant{
		Name: a.name, Lease: known, Token: c.grant.Token, Owner: a.Owner,
		TTL: wire.Duration(ttl.Truncate(time.Millisecond)), ExpiresAt: wire.Time{Time: now.Add(left)},
	}
}
