package server

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/wire"
)

const defaultPage = 100

// list serves GET /v1/locks. It leaves out the locks that the caller may not see.
func (s *Server) list(w http.ResponseWriter, r *request) {
	req := backend.ListRequest{Prefix: r.params.Get("prefix"), After: r.params.Get("after"), Limit: defaultPage}
	if v := r.params.Get("limit"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > backend.MaxListLimit {
			s.fail(w, r, invalid("limit", short(v), "1 to "+strconv.Itoa(backend.MaxListLimit)))
			return
		}
		req.Limit = n
	}
	if err := req.Validate(); err != nil {
		s.fail(w, r, err)
		return
	}
	page, err := s.encodeList(r, req)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if _, err := s.send(w, r, http.StatusOK, page); err != nil {
		s.unwritten(r, err)
	}
}

// encodeList reads a page and encodes it, in a slot. The answer is sent after the slot is free again.
func (s *Server) encodeList(r *request, req backend.ListRequest) ([]byte, error) {
	leave, err := s.admit(r.Context(), s.admission.lists)
	if err != nil {
		return nil, err
	}
	defer leave()
	locks, next, err := s.visible(r, req)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	out := wire.List{Locks: make([]wire.Lock, len(locks)), Next: next}
	for i, l := range locks {
		out.Locks[i] = s.told(r, l, now)
	}
	return encode(out)
}

// told returns the state of a lock as the caller may see it.
func (s *Server) told(r *request, l backend.LockInfo, now time.Time) wire.Lock {
	out := wire.FromLock(l, now)
	s.viewOf(r, l.Name).hide(&out, wantsLeases(r))
	return out
}

const (
	// listStep is how many locks are read from the backend in one call.
	listStep = 100
	// listBytes ends a page early: locks may have thousands of holders each.
	listBytes = 1 << 20
)

// visible reads pages until it has the requested number of locks that the caller may see, or
// enough to fill an answer. The returned cursor is the name of one of these locks: the
// backend's own cursor may be the name of a lock that the caller may not see.
func (s *Server) visible(r *request, req backend.ListRequest) ([]backend.LockInfo, string, error) {
	var seen []backend.LockInfo
	size, most := 0, req.Limit
	for {
		req.Limit = min(most-len(seen), listStep)
		var page backend.ListPage
		err := s.agent.Patiently(r.Context(), func(ctx context.Context) error {
			var err error
			page, err = s.b.List(ctx, req)
			return err
		})
		if err != nil {
			return nil, "", err
		}
		for i, l := range page.Locks {
			if !s.allowed(r, l.Name) {
				continue
			}
			seen = append(seen, l)
			size += lockSize(l)
			if more := page.Next != "" || i < len(page.Locks)-1; more && (len(seen) == most || size >= listBytes) {
				return seen, l.Name, nil
			}
		}
		if page.Next == "" {
			return seen, "", nil
		}
		req.After = page.Next
	}
}

// lockSize returns the approximate size of a lock in an answer, in bytes.
func lockSize(l backend.LockInfo) int {
	const frame = 320 // of a holder or a waiter, without its texts
	n := frame + len(l.Name)
	for _, h := range l.Holders {
		n += frame + len(h.Owner) + len(h.Note)
	}
	for _, w := range l.Waiters {
		n += frame + len(w.Owner) + len(w.Note)
	}
	return n
}

func wantsLeases(r *request) bool { return r.Header.Get(wire.HeaderWaiterLeases) == "true" }

// inspect serves GET /v1/locks/{name}.
func (s *Server) inspect(w http.ResponseWriter, r *request) {
	var info backend.LockInfo
	err := s.agent.Patiently(r.Context(), func(ctx context.Context) error {
		var err error
		info, err = s.b.Inspect(ctx, r.name)
		return err
	})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	info.Name = r.name
	lock := s.told(r, info, time.Now())
	lock.MayBreak = s.viewOf(r, r.name).all
	s.write(w, r, http.StatusOK, lock)
}

// holderShownAs returns the ID in the store of the holder that this client is shown under an ID: its own leases
// without their mark, those of others as they are. Without principals, and where there is none, it is the ID.
func (s *Server) holderShownAs(ctx context.Context, r *request, id backend.LeaseID) (backend.LeaseID, error) {
	if r.mark == "" || id == "" {
		return id, nil
	}
	info, err := s.b.Inspect(ctx, r.name)
	if err != nil {
		return "", err
	}
	v := s.viewOf(r, r.name)
	for _, h := range info.Holders {
		if v.lease(string(h.Lease)) == string(id) {
			return h.Lease, nil
		}
	}
	return id, nil
}

// breakLock serves DELETE /v1/locks/{name}: an operator's act. The call to the backend is never
// retried: a second break would evict the next holder.
func (s *Server) breakLock(w http.ResponseWriter, r *request) {
	const most = backend.MaxOwnerLen / 2
	claimed := r.Header.Get(wire.HeaderActor)
	claimed = strings.ToValidUTF8(claimed[:min(len(claimed), most)], "")
	actor := r.principal
	if claimed != "" {
		actor = claimed + " via " + actor
	}
	req := backend.BreakRequest{Name: r.name, Lease: backend.LeaseID(r.params.Get("lease")), Reason: r.params.Get("reason"), Actor: actor}
	if r.signIn != nil && strings.TrimSpace(req.Reason) == "" {
		s.fail(w, r, invalid("reason", "empty", "given when signed in on the page"))
		return
	}
	if err := req.Validate(); err != nil {
		s.fail(w, r, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.cfg.Timeout)
	defer cancel()
	var err error
	if req.Lease, err = s.holderShownAs(ctx, r, req.Lease); err != nil {
		s.fail(w, r, err)
		return
	}
	res, err := s.b.Break(ctx, req)
	s.audit.broke(r, claimed, res, err)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.metrics.Broken()
	for _, h := range res.Broken {
		s.registry.ended(leaseKey{r.name, h.Lease})
		s.losses.note(backend.Event{
			Kind: backend.EventBroken, Name: r.name, Lease: h.Lease, Owner: h.Owner, Mode: h.Mode, Token: h.Token, Reason: req.Reason, At: time.Now(),
		})
	}
	broken := wire.FromHolders(res.Broken, time.Now())
	s.viewOf(r, r.name).hideHolders(broken)
	s.write(w, r, http.StatusOK, wire.Break{Name: r.name, Token: res.Token, Broken: broken})
}
