package server

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"

	"golang.org/x/time/rate"

	"github.com/holdfast-io/holdfast/backend"
)

// auditor writes a line for each break, and each refusal for want of an identity or
// a right. What others caused, the refusals, is bounded, so that they do not fill the disk.
type auditor struct {
	log     *slog.Logger
	refused *rate.Limiter
	left    atomic.Uint64 // refusals without a line since the last one with a line
	looks   *rate.Limiter // see misused
	looking chan struct{} // has a value for each read in progress
}

const (
	refusalsPerSecond = 100
	looksPerSecond    = 40
	looksAtOnce       = 2 // concurrently
)

func newAuditor(log *slog.Logger) *auditor {
	return &auditor{
		log: log, refused: rate.NewLimiter(refusalsPerSecond, refusalsPerSecond),
		looks: rate.NewLimiter(looksPerSecond, looksPerSecond), looking: make(chan struct{}, looksAtOnce),
	}
}

// act writes a line. The principal is what the server knows; what the client says of itself is claimed.
func (a *auditor) act(r *request, act string, attrs ...slog.Attr) {
	all := append([]slog.Attr{slog.String("act", act), slog.String("principal", r.principal), slog.String("address", r.RemoteAddr), attrRequest(r)}, attrs...)
	a.log.LogAttrs(r.Context(), levelWarn, "audit", all...)
}

// refuse writes a line for a request, or a part of one, that was refused.
func (a *auditor) refuse(r *request, act Action, err error) {
	if !a.refused.Allow() {
		a.left.Add(1)
		return
	}
	a.act(r, "refused", slog.String("method", r.Method), slog.String("verb", string(act.Verb)), attrLock(act.Name), attrError(err),
		slog.Uint64("not_written", a.left.Swap(0)))
}

var errOfAnother = errors.New("the lease belongs to another principal")

// misused writes a line if a renewal or a release failed because the lease belongs to another principal. To find that
// out it reads the lock, within looksPerSecond and looksAtOnce: a store that has lost leases is not asked about each of
// them. The client does not wait for it, so that its answer does not tell, by the time it takes, whether the lease exists.
func (s *Server) misused(r *request, act Action, err error) {
	if r.mark == "" || !errors.Is(err, backend.ErrLost) || !s.audit.looks.Allow() {
		return
	}
	s.later(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		select {
		case s.audit.looking <- struct{}{}:
			defer func() { <-s.audit.looking }()
		case <-ctx.Done():
			return
		}
		info, err := s.b.Inspect(ctx, act.Name)
		if err != nil {
			s.cfg.Logger.LogAttrs(ctx, slog.LevelDebug, "whose lease a client named is not known", attrRequest(r), attrLock(act.Name), attrError(err))
			return
		}
		holds := slices.ContainsFunc(info.Holders, func(h backend.Holder) bool { return r.ofAnother(act.Lease, h.Lease) })
		if holds || slices.ContainsFunc(info.Waiters, func(w backend.Waiter) bool { return r.ofAnother(act.Lease, w.Lease) }) {
			s.audit.refuse(r, act, errOfAnother)
		}
	})
}

// broke writes the line that records who broke what, and why.
func (a *auditor) broke(r *request, claimed string, res backend.BreakResult, err error) {
	result := "broken"
	switch {
	case err != nil:
		result = err.Error()
	case len(res.Broken) == 0:
		result = "not held"
	}
	owners := slices.Collect(func(yield func(string) bool) {
		for _, h := range res.Broken {
			if !yield(h.Owner) {
				return
			}
		}
	})
	a.act(r, "break", slog.String("claimed", claimed), attrLock(r.name), slog.String("lease", r.params.Get("lease")), slog.Uint64("token", uint64(res.Token)),
		slog.Any("owners", owners), slog.String("reason", r.params.Get("reason")), slog.String("result", result))
}
