package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// gather is how long a result waits for others to be sent with it. Two writes cost more than
// one, and this is short against the time that an acquire has taken already.
const gather = 2 * time.Millisecond

// batch serves POST /v1/leases/batch: acquires that do not wait, and releases, with a result
// each. All of them are sent to the backend concurrently, so that a backend that can groups
// them into one request of its own; but the releases of a lock come before its acquires. Every
// item is checked, authorised and counted on its own, and a refused item does not affect the
// others.
//
// The answer has a line for each item, in the order in which the backend answers. One document
// would be as late as the slowest of its items: a lock on a backend that is unavailable for a
// moment would delay all other locks of its client. Cutting the slow items off after a time
// would make a slow backend slower, because all of them would be retried. Nothing waits in the
// queue here, for a similar reason: a proxy may hold an answer back until it is complete.
func (s *Server) batch(w http.ResponseWriter, r *request) {
	var req wire.BatchRequest
	if err := wire.Decode(r.body, &req); err != nil {
		s.fail(w, r, err)
		return
	}
	n := len(req.Acquire) + len(req.Release)
	if n == 0 || n > maxBatch {
		s.fail(w, r, invalid("acquire and release", strconv.Itoa(n)+" items", fmt.Sprintf("1 to %d", maxBatch)))
		return
	}
	acquiring, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.stopping, func() { cancel(errStopping) })()
	b := batch{s: s, r: r, results: make(chan wire.BatchResult, n), holders: max(1, backend.MaxHeldHolders/max(1, len(req.Acquire)))}
	var work sync.WaitGroup
	defer work.Wait() // they read the request
	before := b.releases(&work, req.Release)
	for i, item := range req.Acquire {
		a, err := b.parseItem(item)
		var leave func()
		if err == nil {
			leave, err = b.enter(a)
		}
		if err != nil {
			b.failed(wire.OpAcquire, i, item.Name, item.Lease, err)
			continue
		}
		work.Go(func() {
			if released := before[a.name]; released != nil {
				released.Wait()
			}
			b.acquire(acquiring, i, a, leave)
		})
	}
	b.tell(w, n)
}

// batch is one request for many acquires and releases.
type batch struct {
	s       *Server
	r       *request
	results chan wire.BatchResult // capacity: one per item; gets one per item
	holders int                   // the most that a refusal names: a batch has many refusals
}

// parseItem checks one acquire, and whether it is allowed.
func (b *batch) parseItem(item wire.BatchAcquire) (ask, error) {
	a := ask{name: item.Name, mark: b.r.mark, AcquireRequest: wire.AcquireRequest{
		TTL: item.TTL, Owner: item.Owner, Shared: item.Shared, Limit: item.Limit, Permits: item.Permits, Note: item.Note, Lease: item.Lease,
	}}
	if a.TTL == 0 {
		a.TTL = wire.Duration(b.s.cfg.DefaultTTL)
	}
	orDefault(&a.Permits, 1)
	// Without a lease ID of the client's own, no client would know a grant whose line was lost.
	if err := errors.Join(backend.ValidateName(a.name), backend.ValidateLeaseID(backend.LeaseID(a.Lease))); err != nil {
		return a, err
	}
	if err := b.s.checkAsk(&a); err != nil {
		return a, err
	}
	err := b.s.authorize(b.r, Action{Verb: Acquire, Name: a.name, Lease: backend.LeaseID(a.Lease)})
	a.stored = b.r.stored(backend.LeaseID(a.Lease))
	return a, err
}

// enter counts an acquire as if it had come on its own.
func (b *batch) enter(a ask) (func(), error) {
	if err := b.s.checkRate(b.r); err != nil {
		return nil, err
	}
	return b.s.countAcquire(b.r, leaseKey{a.name, a.stored})
}

// acquire takes one lock if it is free, without waiting. It calls leave before the result is sent: see
// answer.before.
func (b *batch) acquire(ctx context.Context, i int, a ask, leave func()) {
	c, err := b.s.try(ctx, a)
	if err != nil {
		leave()
		b.failed(wire.OpAcquire, i, a.name, a.Lease, cause(ctx, err))
		return
	}
	g := b.s.enterGrant(b.r, a, c)
	leave()
	b.results <- wire.BatchResult{Op: wire.OpAcquire, Item: i, Name: g.Name, Lease: g.Lease, Token: g.Token, TTL: g.TTL, ExpiresAt: g.ExpiresAt}
}

// parseRelease checks one release, and whether it is allowed.
func (b *batch) parseRelease(item wire.BatchRelease) error {
	lease := backend.LeaseID(item.Lease)
	if err := errors.Join(backend.ValidateName(item.Name), backend.ValidateLeaseID(lease)); err != nil {
		return err
	}
	return b.s.authorize(b.r, Action{Verb: Release, Name: item.Name, Lease: lease})
}

// releases releases the leases. It returns, by lock, what an acquire of that lock has to wait for.
func (b *batch) releases(work *sync.WaitGroup, items []wire.BatchRelease) map[string]*sync.WaitGroup {
	before := make(map[string]*sync.WaitGroup)
	for i, item := range items {
		if err := b.parseRelease(item); err != nil {
			b.failed(wire.OpRelease, i, item.Name, item.Lease, err)
			continue
		}
		released := before[item.Name]
		if released == nil {
			released = new(sync.WaitGroup)
			before[item.Name] = released
		}
		k := leaseKey{item.Name, b.r.stored(backend.LeaseID(item.Lease))}
		known := b.s.knows(b.r, k)
		released.Add(1)
		work.Go(func() {
			defer released.Done()
			b.release(i, item, k, known)
		})
	}
	return before
}

func (b *batch) release(i int, item wire.BatchRelease, k leaseKey, known bool) {
	if err := b.s.releaseLease(b.r, known, k); err != nil {
		b.s.misused(b.r, Action{Verb: Release, Name: item.Name, Lease: backend.LeaseID(item.Lease)}, err)
		b.failed(wire.OpRelease, i, item.Name, item.Lease, err)
		return
	}
	b.results <- wire.BatchResult{Op: wire.OpRelease, Item: i, Name: item.Name, Lease: item.Lease}
}

func (b *batch) failed(op string, i int, name, lease string, err error) {
	now := time.Now()
	p := b.s.conceal(b.r, name, problemOf(err, now))
	p.Holders = p.Holders[:min(len(p.Holders), b.holders)]
	b.results <- wire.BatchResult{Op: op, Item: i, Name: name, Lease: lease, Error: &p, Time: wire.Time{Time: now}}
}

// tell sends the results as they arrive; results that arrive together share one write. When
// sending fails it still waits for all results: the client retries under the same leases.
func (b *batch) tell(w http.ResponseWriter, n int) {
	h := w.Header()
	h.Set("Content-Type", wire.ContentTypeLines)
	h.Set(wire.HeaderTime, wire.FormatTime(time.Now()))
	var lines bytes.Buffer
	enc := json.NewEncoder(&lines)
	enc.SetEscapeHTML(true) // as encode does
	var failed error
	for told := 0; told < n; {
		some, err := b.gather(enc, n-told)
		failed = errors.Join(failed, err)
		if failed == nil {
			failed = b.send(w, lines.Bytes(), some == n)
		}
		told += some
		lines.Reset()
	}
	if failed != nil {
		b.s.cfg.Logger.LogAttrs(b.r.Context(), slog.LevelDebug, "answer not written", attrError(failed))
	}
}

// gather encodes the next results and returns their number. It waits for the first one, and
// adds the others left that arrive soon after it.
func (b *batch) gather(enc *json.Encoder, left int) (int, error) {
	var errs []error
	add := func(res wire.BatchResult) {
		if err := enc.Encode(res); err != nil {
			errs = append(errs, fmt.Errorf("encode the answer: %w", err))
		}
	}
	add(<-b.results)
	if left == 1 {
		return 1, errors.Join(errs...)
	}
	late := time.NewTimer(gather)
	defer late.Stop()
	for n := 1; ; n++ {
		if n == left {
			return n, errors.Join(errs...)
		}
		select {
		case res := <-b.results:
			add(res)
		case <-late.C:
			return n, errors.Join(errs...)
		}
	}
}

// send sends some lines. whole means that they are the complete answer.
func (b *batch) send(w http.ResponseWriter, lines []byte, whole bool) error {
	c := http.NewResponseController(w)
	if err := c.SetWriteDeadline(time.Now().Add(b.s.cfg.Limits.WriteTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("set the deadline: %w", err)
	}
	if whole {
		w.Header().Set("Content-Length", strconv.Itoa(len(lines)))
	}
	if _, err := w.Write(lines); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	if whole {
		return nil
	}
	if err := c.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("send the answer: %w", err)
	}
	return nil
}
