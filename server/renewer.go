package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// renewer puts renewals that come in at once into one call of the backend: while a
// call is under way the next one fills. A call that hangs does not stop the others:
// there may be several. Requests take turns: one with a thousand leases holds up one
// with a single lease no more than one with a few.
type renewer struct {
	b       backend.Backend
	most    int // leases in one call
	calls   int // at the same time
	timeout time.Duration

	mu      sync.Mutex
	queue   [][]pending // by request; none is empty
	flights int
}

const (
	// callsForHolders and callsForClaims are how many calls of the backend renew leases at
	// the same time: those that are known here, and the others.
	callsForHolders, callsForClaims = 4, 1
	// mostRenewals is how many leases one call names, where the backend has no bound.
	mostRenewals = 1000
	// turn is how many leases of one request are renewed before another has its turn.
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
	lease backend.TimedRenewal
	done  chan<- renewal // capacity 1; gets one value
}

// renewal is what became of it. left counts from when the backend was asked.
type renewal struct {
	backend.Renewal
	asked time.Time
}

// renew asks for all the leases and waits for the answers, in order. What has no
// answer when ctx ends is unavailable: it may have been renewed.
func (r *renewer) renew(ctx context.Context, leases []backend.TimedRenewal) []renewal {
	answers := make([]chan renewal, len(leases))
	batch := make([]pending, len(leases))
	for i, l := range leases {
		answers[i] = make(chan renewal, 1)
		batch[i] = pending{lease: l, done: answers[i]}
	}
	if len(batch) == 0 {
		return nil
	}
	r.mu.Lock()
	r.queue = append(r.queue, batch)
	fly := r.flights < r.calls
	if fly {
		r.flights++
	}
	r.mu.Unlock()
	if fly {
		go r.fly()
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

// fly makes calls until the queue is empty.
func (r *renewer) fly() {
	for {
		r.mu.Lock()
		batch := r.takeLocked()
		if len(batch) == 0 {
			r.queue = nil
			r.flights--
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		r.call(batch)
	}
}

// takeLocked takes the leases of the next call out of the queue. A request of which some
// are left goes to the end of it.
func (r *renewer) takeLocked() []pending {
	var batch []pending
	for len(r.queue) > 0 && len(batch) < r.most {
		first := r.queue[0]
		r.queue = r.queue[1:]
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
