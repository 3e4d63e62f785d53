package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/acquire"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// renew serves PUT /v1/locks/{name}/leases/{lease}.
func (s *Server) renew(w http.ResponseWriter, r *request) {
	var req wire.RenewRequest
	err := wire.Decode(r.body, &req)
	if err == nil && req.TTL != 0 { // otherwise the lease keeps its own
		err = s.checkTTL(time.Duration(req.TTL))
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	lease := backend.TimedRenewal{Name: r.name, Lease: r.inStore, TTL: time.Duration(req.TTL)}
	got := s.renewerOf(s.knows(r, leaseKey{r.name, r.inStore})).renew(r.Context(), []backend.TimedRenewal{lease})
	if err := got[0].Err; err != nil {
		s.fail(w, r, s.notRenewed(r, r.named, lease, err))
		return
	}
	s.write(w, r, http.StatusOK, s.renewed(r.named, lease, got[0]))
}

// renewMany serves POST /v1/leases/renew. Every lease is checked and authorised on its own. A
// refused lease does not keep the others from being renewed.
func (s *Server) renewMany(w http.ResponseWriter, r *request) {
	var req wire.RenewManyRequest
	if err := wire.Decode(r.body, &req); err != nil {
		s.fail(w, r, err)
		return
	}
	if n := len(req.Leases); n == 0 || n > maxRenewed {
		s.fail(w, r, invalid("leases", strconv.Itoa(n), fmt.Sprintf("1 to %d", maxRenewed)))
		return
	}
	out := wire.RenewManyResponse{Leases: make([]wire.RenewResult, len(req.Leases))}
	var holders, claims renewals
	for i, ref := range req.Leases {
		lease, err := s.parseRef(r, ref)
		switch {
		case err != nil:
			out.Leases[i] = failed(ref, err)
		case s.knows(r, leaseKey{lease.Name, lease.Lease}):
			holders.add(lease, ref, i)
		default:
			claims.add(lease, ref, i)
		}
	}
	// Leases that are known here do not wait for the others.
	var both sync.WaitGroup
	both.Go(func() { s.renewAll(r, true, holders, out.Leases) })
	s.renewAll(r, false, claims, out.Leases)
	both.Wait()
	s.write(w, r, http.StatusOK, out)
}

// renewals are some of the leases of a request.
type renewals struct {
	leases []backend.TimedRenewal
	refs   []wire.LeaseRef // as the client names them
	at     []int           // their indexes in the request
}

func (some *renewals) add(lease backend.TimedRenewal, ref wire.LeaseRef, at int) {
	some.leases, some.refs, some.at = append(some.leases, lease), append(some.refs, ref), append(some.at, at)
}

// renewAll renews leases that are all known here, or all not known here. It writes the results to out.
func (s *Server) renewAll(r *request, known bool, some renewals, out []wire.RenewResult) {
	for i, got := range s.renewerOf(known).renew(r.Context(), some.leases) {
		lease := some.leases[i]
		named := backend.LeaseID(some.refs[i].Lease)
		if got.Err != nil {
			out[some.at[i]] = failed(some.refs[i], s.notRenewed(r, named, lease, got.Err))
			continue
		}
		out[some.at[i]] = s.renewed(named, lease, got)
	}
}

// renewerOf returns the renewer of leases that are known here, or of those that are not.
func (s *Server) renewerOf(known bool) *renewer {
	if known {
		return s.renewer
	}
	return s.claims
}

func (s *Server) parseRef(r *request, ref wire.LeaseRef) (backend.TimedRenewal, error) {
	lease := backend.TimedRenewal{Name: ref.Name, Lease: backend.LeaseID(ref.Lease), TTL: time.Duration(ref.TTL)}
	err := errors.Join(backend.ValidateName(lease.Name), backend.ValidateLeaseID(lease.Lease))
	if err == nil && lease.TTL != 0 { // as in renew
		err = s.checkTTL(lease.TTL)
	}
	if err != nil {
		return lease, err
	}
	err = s.authorize(r, Action{Verb: Renew, Name: lease.Name, Lease: lease.Lease})
	lease.Lease = r.stored(lease.Lease)
	return lease, err
}

func failed(ref wire.LeaseRef, err error) wire.RenewResult {
	p := problemOf(err, time.Now())
	return wire.RenewResult{Name: ref.Name, Lease: ref.Lease, Error: &p}
}

// renewed counts a renewal and returns its result, with the lease as the client names it. The client counts the TTL from before it
// sent the request; the time left that the backend reported counts from a later moment.
func (s *Server) renewed(named backend.LeaseID, lease backend.TimedRenewal, got renewal) wire.RenewResult {
	k := leaseKey{lease.Name, lease.Lease}
	s.registry.renewed(k, got.Left)
	s.losses.held(k)
	left := got.Left
	if lease.TTL > 0 {
		left = min(left, lease.TTL)
	}
	return wire.RenewResult{
		Name: lease.Name, Lease: string(named), Token: got.Token,
		TTL:       wire.Duration(left.Truncate(time.Millisecond)),
		ExpiresAt: wire.Time{Time: time.Now().Add(left - time.Since(got.asked))},
	}
}

// notRenewed counts a renewal that failed, and returns the error for the client, which knows the lease as named.
func (s *Server) notRenewed(r *request, named backend.LeaseID, lease backend.TimedRenewal, err error) error {
	lost := errors.Is(err, backend.ErrLost)
	s.metrics.RenewFailed(lost)
	if !lost {
		return err
	}
	k := leaseKey{lease.Name, lease.Lease}
	s.metrics.Lost(holdfast.CauseGone)
	s.registry.ended(k)
	s.misused(r, Action{Verb: Renew, Name: lease.Name, Lease: named}, err)
	return s.losses.explain(k, err)
}

// release serves DELETE /v1/locks/{name}/leases/{lease}. It releases a lease that is held as
// well as a place in the queue. A lease that is neither is answered with 410 and made unusable:
// an acquire of it that is still on its way can no longer be granted.
func (s *Server) release(w http.ResponseWriter, r *request) {
	k := leaseKey{r.name, r.inStore}
	if err := s.releaseLease(r, s.knows(r, k), k); err != nil {
		s.misused(r, r.action(), err)
		s.fail(w, r, err)
		return
	}
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.cfg.Limits.WriteTimeout)); err != nil {
		s.cfg.Logger.LogAttrs(r.Context(), slog.LevelDebug, "no write deadline", attrError(err))
	}
	w.WriteHeader(http.StatusNoContent)
}

// releaseLease releases one lease; see release. One that is not known here may be refused because of an overload: it may
// never have existed.
func (s *Server) releaseLease(r *request, known bool, k leaseKey) error {
	if !known {
		leave, err := s.admit(r.Context(), s.admission.others)
		if err != nil {
			return err
		}
		defer leave()
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.cfg.Timeout) // for both calls
	defer cancel()
	req := backend.ReleaseRequest{Name: k.name, Lease: k.lease}
	s.queue.release(k.name) // noted first: the next holder may have its grant before this call returns
	unknown := false
	err := s.agent.Patiently(ctx, func(ctx context.Context) error {
		err := s.b.Release(ctx, req)
		if unknown && errors.Is(err, backend.ErrLost) {
			return nil // an earlier attempt released it
		}
		if away, ok := errors.AsType[*backend.UnavailableError](err); ok {
			unknown = unknown || away.MayHold
		} else if err != nil && !acquire.IsAnswer(err) {
			unknown = true // it was cut short
		}
		return err
	})
	if errors.Is(err, backend.ErrLost) {
		req.Abandon = true
		if abandoned := s.b.Release(ctx, req); abandoned != nil {
			err = abandoned
		}
	}
	if err == nil {
		s.registry.ended(k)
	}
	return err
}
