package redlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/redisprogram"
)

// Group commit: one request is under way to a node, and what is asked meanwhile travels in
// the next. So a node does everything in the order in which it was asked: what is given
// back never comes before what it gives back.
const (
	maxFlights = 1
	maxBatch   = 256 // operations in one request
	// maxDebts bounds what a node is told when it is back.
	maxDebts = 4096
	// The time between two looks at a node that is down.
	firstProbe, lastProbe = 50 * time.Millisecond, time.Second
)

// op is one operation on its way to a node.
type op struct {
	request

	// reply is called once, from any goroutine, and does not block. It may be nil.
	reply func(answer []any, err error)
}

func (o *op) tell(answer []any, err error) {
	if o.reply != nil {
		o.reply(answer, err)
	}
}

// node is one server. A node that did not answer once is down: nothing is sent to it but
// a probe now and then, and nobody waits for it.
type node struct {
	b    *Backend
	link link

	mu      sync.Mutex
	queue   []*op
	flights int
	down    bool
	debts   []*op
	// Of the data that the node is known to have; empty until it has heard of this value.
	identity string
	closed   bool
	drained  chan struct{} // closed when the node is closed and nothing is under way
}

// submit queues the operation, and starts a flight when not all are under way.
func (n *node) submit(o *op) {
	n.mu.Lock()
	switch {
	case n.closed:
		n.mu.Unlock()
		o.tell(nil, &unsentError{backend.ErrClosed})
		return
	case n.down:
		n.owe(o)
		n.mu.Unlock()
		o.tell(nil, &unsentError{errDown})
		return
	}
	n.queue = append(n.queue, o)
	if n.flights < maxFlights {
		n.flights++
		n.takeOff(n.load())
	}
	n.mu.Unlock()
}

// owe keeps what gives something back for when the node is up. mu is held.
func (n *node) owe(o *op) {
	if !o.debt {
		return
	}
	if len(n.debts) >= maxDebts {
		n.debts = n.debts[1:] // it ends by itself
	}
	n.debts = append(n.debts, &op{request: o.request})
}

// load takes the next batch off the queue. mu is held.
func (n *node) load() []*op {
	k := min(len(n.queue), maxBatch)
	batch := n.queue[:k:k]
	n.queue = n.queue[k:]
	if len(n.queue) == 0 {
		n.queue = nil
	}
	return batch
}

// takeOff starts a goroutine that sends the batch, and those after it. mu is held.
func (n *node) takeOff(batch []*op) {
	n.b.work.Go(func() {
		for len(batch) > 0 && n.fly(batch) {
			batch = n.land()
		}
	})
}

// land gives the next batch, or ends the flight.
func (n *node) land() []*op {
	n.mu.Lock()
	defer n.mu.Unlock()
	batch := n.load()
	if len(batch) == 0 {
		n.landed()
	}
	return batch
}

// landed ends a flight. mu is held.
func (n *node) landed() {
	n.flights--
	if n.closed && n.flights == 0 {
		close(n.drained)
	}
}

// fly sends one batch and hands out the answers. It reports false when that took too
// long: then the callers were told, and the flight is over.
func (n *node) fly(batch []*op) bool {
	var over atomic.Bool
	timer := time.AfterFunc(n.b.cfg.RequestTimeout, func() {
		if over.CompareAndSwap(false, true) {
			n.fail(batch, errTimeout)
		}
	})
	defer timer.Stop()
	ctx, cancel := context.WithTimeoutCause(n.b.wire, n.b.cfg.RequestTimeout, errTimeout)
	defer cancel()
	sorted := batchOf(batch)
	answers, err := n.exchange(ctx, sorted)
	if !over.CompareAndSwap(false, true) {
		return false
	}
	if err != nil {
		return n.failed(batch, err)
	}
	sorted.tell(answers)
	return true
}

// failed tells the callers. It reports whether the node goes on: an answer that is an
// error is an answer.
func (n *node) failed(batch []*op, err error) bool {
	server, ok := errors.AsType[*serverError](err)
	if !ok || server.Code == "LOADING" {
		n.fail(batch, err)
		return false
	}
	for _, o := range batch {
		o.tell(nil, err)
	}
	return true
}

// fail takes the node for down. All who wait for it are told, and the flight is over.
func (n *node) fail(batch []*op, err error) {
	n.mu.Lock()
	queue := n.queue
	n.queue = nil
	n.landed()
	for _, o := range batch {
		n.owe(o)
	}
	for _, o := range queue {
		n.owe(o)
	}
	if !n.down && !n.closed {
		n.down = true
		n.b.work.Go(n.revive)
	}
	n.mu.Unlock()
	if n.b.wire.Err() != nil {
		err = backend.ErrClosed
	}
	for _, o := range batch {
		o.tell(nil, err)
	}
	for _, o := range queue {
		o.tell(nil, &unsentError{err})
	}
}

// suspect takes a node that nothing was sent to yet for down.
func (n *node) suspect(err error) {
	n.mu.Lock()
	n.flights++ // which fail ends
	n.mu.Unlock()
	n.fail(nil, err)
}

// revive looks at a node that is down until it answers.
func (n *node) revive() {
	for pause := firstProbe; ; pause = min(2*pause, lastProbe) {
		if !n.b.sleep(n.b.base, pause) {
			return
		}
		if n.probe() == nil {
			return
		}
	}
}

// probe asks whether the node answers. When it does it is up, and told what it missed.
func (n *node) probe() error {
	ctx, cancel := context.WithTimeoutCause(n.b.base, n.b.cfg.RequestTimeout, errTimeout)
	defer cancel()
	done := make(chan error, 1)
	n.b.work.Go(func() {
		_, err := n.exchange(ctx, batchOf([]*op{{request: many("ping")}}))
		done <- err
	})
	select {
	case err := <-done:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = false
	n.queue = append(n.queue, n.debts...)
	n.debts = nil
	if len(n.queue) > 0 && n.flights < maxFlights && !n.closed {
		n.flights++
		n.takeOff(n.load())
	}
	return nil
}

// exchange is one batch and its answers. A server that does not know the program, or was
// not greeted since it was started, does nothing: then hello comes before everything else
// in the same execution. So a server that lost data
// never executes an operation before it was asked whether it did.
func (n *node) exchange(ctx context.Context, batch *batch) ([]any, error) {
	const attempts = 4
	load, greet := false, n.known() == ""
	for range attempts {
		args, err := n.compose(ctx, batch, greet)
		if err != nil {
			return nil, err
		}
		r, err := n.link.run(ctx, load, n.b.key("m"), args)
		switch {
		case errors.Is(err, redisprogram.ErrUnknown):
			load, greet = true, true
			continue
		case err != nil && ctx.Err() != nil && n.b.wire.Err() == nil:
			return nil, errTimeout
		case err != nil:
			return nil, err
		case len(r) == 0:
			return nil, errAnswer
		}
		switch r[0] {
		case "OK":
			if greet {
				return n.greeted(r[1:])
			}
			return r[1:], nil
		case "MARKER":
			greet = true
		case "FORMAT":
			return nil, &unsentError{ErrForeignData}
		default:
			return nil, errAnswer
		}
	}
	return nil, &unsentError{errors.New("the server keeps losing its scripts or its data")}
}

func (n *node) known() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.identity
}

// greeted takes the identity off the front of the answers.
func (n *node) greeted(answers []any) ([]any, error) {
	d := decoder{list: answers}
	identity := d.text()
	if d.err != nil || identity == "" {
		return nil, errAnswer
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.identity = identity
	return d.list, nil
}

// compose gives the arguments of the script.
func (n *node) compose(ctx context.Context, batch *batch, greet bool) ([]string, error) {
	const head = 6
	args := append(make([]string, 0, head+batch.size()), n.b.longest, n.b.mode, n.known())
	if greet {
		safe, err := n.safe(ctx)
		if err != nil {
			return nil, err
		}
		first := n.b.fresh.Load() && n.known() == ""
		args = append(args, "hello", flag(safe), flag(first))
	}
	return batch.write(args), nil
}

// safe reports whether what the server answers is on disk. One that does not tell its
// settings counts as one that loses data.
func (n *node) safe(ctx context.Context) (bool, error) {
	settings, err := n.link.config(ctx, "*append*")
	if err != nil {
		if _, ok := errors.AsType[*serverError](err); ok {
			return false, nil
		}
		return false, &unsentError{err}
	}
	return settings["appendonly"] == "yes" && settings["appendfsync"] == "always" && settings["no-appendfsync-on-rewrite"] != "yes", nil
}

// close takes nothing more on. What it gives is closed when all that was queued is sent.
func (n *node) close() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	if n.flights == 0 {
		close(n.drained)
	}
	return n.drained
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
