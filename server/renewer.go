package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// renewer groups concurrent renewals into one call of the backend: while a call is in progress,
// the next one fills. Several calls may be in progress, so a call that hangs does not stop the
// others. Requests take turns: a request with a thousand leases delays one with a single lease
// no more than a request with a few does.
type renewer struct {
	b       backend.Backend
	most    int // leases in one call
	calls   int // at the same time
	timeout time.Duration

	mu      sync.Mutex
	queue   [][]pending // by request; no element is empty
	running int
}

const (
	// callsForHolders and callsForClaims are how many calls of the backend renew leases at the
	// same time: leases that are known here, and all others.
	callsForHolders, callsForClaims = 4, 1
	// mostRenewals is how many leases one call names if the backend has no bound.
	mostRenewals = 1000
	// turn is how many leases of one request are renewed before the next request has its turn.
	turn = 64
)

func newRenewer(b backend.Backend, calls int, timeout time.Duration) *renewer {
	most := mostRenewals
	if n := b.Capabilities().MaxRenew; n > 0 {
		most = min(most, n)
	}
	return &renewer{b: b, most: most, calls: calls, timeout: timeout}
}

// pending is a renewal in the queue.
type pending struct {
	ctx   context.Context //nolint:containedctx // of the request; once it has ended, no client waits for the result
	lease backend.TimedRenewal
	done  chan<- renewal // capacity 1; gets one value
}

// renewal is the result of a pending renewal. left counts from when the call to the backend
// began.
type renewal struct {
	backend.Renewal
	asked time.Time
}

// renew renews all the leases and returns the results, in order. A lease without a result when
// ctx ends is reported as unavailable: it may have been renewed.
func (r *renewer) renew(ctx context.Context, leases []backend.TimedRenewal) []renewal {
	answers := make([]chan renewal, len(leases))
	batch := make([]pending, len(leases))
	for i, l := range leases {
		answers[i] = make(chan renewal, 1)
		batch[i] = pending{ctx: ctx, lease: l, done: answers[i]}
	}
	if len(batch) == 0 {
		return nil
	}
	r.mu.Lock()
	r.queue = append(r.queue, batch)
	start := r.running < r.calls
	if start {
		r.running++
	}
	r.mu.Unlock()
	if start {
		go r.run()
	}
	out := make([]renewal, len(leases))
	for i, answer := range answers {
		select {
		case out[i] = <-answer:
		case <-ctx.Done():
			out[i].Err = &backend.UnavailableError{Backend: r.b.Capabilities().Name, Op: "renew", MayHold: true, Err: context.Cause(ctx)}
		}
	}
	return out
}

// run makes calls until the queue is empty.
func (r *renewer) run() {
	for {
		r.mu.Lock()
		batch := r.takeLocked()
		if len(batch) == 0 {
			r.queue = nil
			r.running--
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		r.call(batch)
	}
}

// takeLocked takes the leases of the next call out of the queue. A request with leases left
// goes to the end of the queue.
func (r *renewer) takeLocked() []pending {
	var batch []pending
	for len(r.queue) > 0 && len(batch) < r.most {
		first := r.queue[0]
		r.queue = r.queue[1:]
		if first[0].ctx.Err() != nil {
			continue
		}
		n := min(len(first), turn, r.most-len(batch))
		batch = append(batch, first[:n]...)
		if n < len(first) {
			r.queue = append(r.queue, first[n:])
		}
	}
	return batch
}

var errShortAnswer = errors.New("the backend answered for another number of leases")

func (r *renewer) call(batch []pending) {
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	req := backend.RenewRequest{Leases: make([]backend.TimedRenewal, len(batch))}
	for i, p := range batch {
		req.Leases[i] = p.lease
	}
	asked := time.Now()
	res, err := r.b.Renew(ctx, req)
	if err == nil && len(res.Leases) != len(batch) {
		err = &backend.UnavailableError{Backend: r.b.Capabilities().Name, Op: "renew", MayHold: true, Err: errShortAnswer}
	}
	for i, p := range batch {
		if err != nil {
			p.done <- renewal{Renewal: backend.Renewal{Err: err}, asked: asked}
			continue
		}
		p.done <- renewal{Renewal: res.Leases[i], asked: asked}
	}
}
