package redlock

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// Group commit: one request to a node is in progress at a time, and the operations called
// during it are sent in the next. So a node executes everything in the order in which it was
// called: a release never arrives before what it releases.
const (
	maxBatch = 256 // operations in one request
	// maxDebts bounds the releases that a node gets when it is up again.
	maxDebts = 4096
	// The time between two probes of a node that is down.
	firstProbe, lastProbe = 50 * time.Millisecond, time.Second
)

// op is one operation on its way to a node.
type op struct {
	request

	// reply is called once, from any goroutine, and does not block. It may be nil.
	reply func(answer []program.Reply, err error)
}

func (o *op) tell(answer []program.Reply, err error) {
	if o.reply != nil {
		o.reply(answer, err)
	}
}

// node is one server. A node that once did not answer is down: it gets nothing but a probe
// now and then, and no call waits for it.
type node struct {
	b    *Backend
	i    int // of b.nodes
	link link

	evicts   sync.Once       // the warning that it may
	changed  chan struct{}   // capacity 1: the subscriptions have to be adjusted
	channels map[string]bool // by lock: a subscription was sent; true: it stands. Backend.mu guards it

	mu    sync.Mutex // guards what follows
	queue []*op
	busy  bool // a request is in progress
	down  bool
	debts []*op
	// The identity of the data that the node is known to have; empty before its first hello.
	identity string
	closed   bool
}

// submit queues the operation, and starts a request unless one is in progress.
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
	n.start()
	n.mu.Unlock()
}

// owe keeps a release until the node is up. mu is held.
func (n *node) owe(o *op) {
	if !o.owed() {
		return
	}
	if len(n.debts) >= maxDebts {
		n.debts = n.debts[1:] // that lease expires by itself
	}
	n.debts = append(n.debts, &op{request: o.request})
}

// start starts a goroutine that sends what is queued, unless one does. mu is held.
func (n *node) start() {
	if n.busy || n.closed || len(n.queue) == 0 {
		return
	}
	n.busy = true
	n.b.sending.Go(func() {
		for batch := n.nextBatch(); len(batch) > 0 && n.send(batch); {
			batch = n.nextBatch()
		}
	})
}

// nextBatch takes the next batch from the queue. Without one no request is in progress any more.
func (n *node) nextBatch() []*op {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := min(len(n.queue), maxBatch)
	batch := n.queue[:k:k]
	n.queue = n.queue[k:]
	if len(n.queue) == 0 {
		n.queue = nil
	}
	n.busy = len(batch) > 0
	return batch
}

// send sends one batch and delivers the answers. It returns false if that took too long: the
// callers have got an error by then, and the request has ended.
func (n *node) send(batch []*op) bool {
	var over atomic.Bool
	timer := time.AfterFunc(n.b.cfg.RequestTimeout, func() {
		if over.CompareAndSwap(false, true) {
			n.fail(batch, n.b.noAnswer())
		}
	})
	defer timer.Stop()
	ctx, cancel := backend.WithTimeout(n.b.wire, n.b.cfg.RequestTimeout)
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

// failed delivers the error to the callers. It reports whether more is sent: an
// answer that is an error is an answer.
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

// fail marks the node as down. All callers that wait for it get an error, and the request
// ends.
func (n *node) fail(batch []*op, err error) {
	n.mu.Lock()
	queue := n.queue
	n.queue, n.busy = nil, false
	for _, o := range slices.Concat(batch, queue) {
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

// revive probes a node that is down until it answers.
func (n *node) revive() {
	for pause := firstProbe; ; pause = min(2*pause, lastProbe) {
		if !retry.Pause(n.b.base, pause) {
			return
		}
		if n.probe() == nil {
			return
		}
	}
}

// probe sends a ping. If the node answers it is up, and gets the releases that it missed.
func (n *node) probe() error {
	ctx, cancel := backend.WithTimeout(n.b.base, n.b.cfg.RequestTimeout)
	defer cancel()
	if _, err := n.exchange(ctx, batchOf([]*op{{request: many("ping")}})); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = false
	n.queue = append(n.queue, n.debts...)
	n.debts = nil
	n.start()
	return nil
}

// exchange sends one batch and returns its answers. A server that does not know the program,
// or was not greeted since it was started, does nothing. Then hello is sent before the
// operations, in the same execution. So a server that lost data never executes an operation
// before hello has checked for the loss.
func (n *node) exchange(ctx context.Context, batch *batch) ([]program.Reply, error) {
	const attempts = 4
	load, greet := false, n.known() == ""
	for range attempts {
		args, err := n.compose(ctx, batch, greet)
		if err != nil {
			return nil, err
		}
		r, err := n.link.run(ctx, load, n.b.key("m"), args)
		switch {
		case errors.Is(err, program.ErrUnknown):
			load, greet = true, true
			continue
		case err != nil && ctx.Err() != nil && n.b.wire.Err() == nil:
			return nil, n.b.noAnswer()
		case err != nil:
			return nil, err
		case len(r) == 0:
			return nil, program.ErrReply
		}
		switch r[0].S {
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
			return nil, program.ErrReply
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
func (n *node) greeted(answers []program.Reply) ([]program.Reply, error) {
	d := decode(answers)
	identity := d.Text()
	if d.Err != nil || identity == "" {
		return nil, program.ErrReply
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.identity = identity
	return d.List, nil
}

// compose returns the arguments of the script.
func (n *node) compose(ctx context.Context, batch *batch, greet bool) ([]string, error) {
	const head, usual = 6, 12 // the arguments of all, and of an operation
	args := append(make([]string, 0, head+usual*len(batch.ops)), n.b.longest, n.b.mode, n.known())
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

// safe reports whether the server's answers are on disk, and warns of a server that may delete votes. A server
// that does not report its settings counts as one that loses data.
func (n *node) safe(ctx context.Context) (bool, error) {
	settings, err := program.Settings(ctx, n.link.send, "*append*", "maxmemory*")
	if err != nil {
		if _, ok := errors.AsType[*serverError](err); ok {
			return false, nil
		}
		return false, &unsentError{err}
	}
	if program.Evicts(settings) {
		n.evicts.Do(func() {
			n.b.cfg.Logger.LogAttrs(ctx, slog.LevelWarn,
				"redlock: a node may evict keys when its memory is full, and locks be granted twice; set maxmemory-policy to noeviction",
				slog.Int("node", n.i+1), slog.String("maxmemory_policy", settings["maxmemory-policy"]), slog.String("maxmemory", settings["maxmemory"]))
		})
	}
	return program.Synced(settings), nil
}

// survey reports whether another client has used the node, and whether its answers are on disk.
func (n *node) survey() ([]program.Reply, error) {
	ctx, cancel := backend.WithTimeout(n.b.wire, n.b.cfg.RequestTimeout)
	defer cancel()
	marked, err := n.link.send(ctx, "EXISTS", n.b.key("m"))
	if err != nil {
		return nil, err
	}
	safe, err := n.safe(ctx)
	return []program.Reply{marked, program.Int(int64(toInt(safe)))}, err
}

// close accepts nothing more. The queue is sent.
func (n *node) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
