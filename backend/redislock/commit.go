package redislock

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// Bounds of group commit: how many requests are under way at once, and how many
// operations one of them carries. What is asked while all of them are under way
// travels in the next.
const (
	maxFlights = 2
	maxBatch   = 128
)

var (
	errTimeout = errors.New("no answer within the request timeout")
	errFormat  = errors.New("the data on the server has another format")
)

// engine sends operations to the server, those that are asked at the same time in one
// request. A caller is never blocked by the network: it waits for its answer or for
// the end of its context.
type engine struct {
	link    transport
	key     string // of the marker
	mode    string // "q": keep the quarantine
	timeout time.Duration
	hello   func() []string // the arguments of hello
	learn   func(welcome)   // called with what hello answered
	base    context.Context //nolint:containedctx // the life of the engine: ends with close
	cancel  context.CancelFunc
	work    sync.WaitGroup

	mu         sync.Mutex
	queue      []*call
	flights    int
	closed     bool
	generation string
}

// welcome is the answer of hello.
type welcome struct {
	changed bool  // the data that was known before is gone
	longest int64 // ms
}

// call is one operation on its way.
type call struct {
	args []string
	done chan outcome // has room for the one outcome
	sent bool         // guarded by engine.mu
}

type outcome struct {
	answer []reply
	asked  time.Time
	err    error
}

// sentError is why there is no answer. sent: the operation may have been executed.
type sentError struct {
	sent bool
	err  error
}

// Error is the cause's.
func (e *sentError) Error() string { return e.err.Error() }

// Unwrap gives the cause.
func (e *sentError) Unwrap() error { return e.err }

func newEngine(link transport, key, mode string, timeout time.Duration) *engine {
	base, cancel := context.WithCancel(context.Background())
	return &engine{link: link, key: key, mode: mode, timeout: timeout, base: base, cancel: cancel}
}

// do runs one operation. asked is a reading of the clock from before the request left
// that the answer came to. An urgent one goes before all that wait. The error is a
// *sentError, or what the script said of this operation.
func (e *engine) do(ctx context.Context, urgent bool, op string, args ...string) ([]reply, time.Time, error) {
	c := &call{done: make(chan outcome, 1), args: make([]string, 0, len(args)+2)}
	c.args = append(append(c.args, op, strconv.Itoa(len(args))), args...)
	if err := e.submit(c, urgent); err != nil {
		return nil, time.Time{}, &sentError{err: err}
	}
	select {
	case o := <-c.done:
		return o.answer, o.asked, o.err
	case <-ctx.Done():
		return nil, time.Time{}, &sentError{sent: e.forget(c), err: context.Cause(ctx)}
	case <-e.base.Done():
		return nil, time.Time{}, &sentError{sent: e.forget(c), err: backend.ErrClosed}
	}
}

// submit queues the call, and starts a flight when not all are under way.
func (e *engine) submit(c *call, urgent bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return backend.ErrClosed
	}
	if urgent {
		e.queue = append([]*call{c}, e.queue...)
	} else {
		e.queue = append(e.queue, c)
	}
	if e.flights < maxFlights {
		e.flights++
		e.takeOff(e.load())
	}
	return nil
}

// forget takes the call out of the queue. It reports whether it was sent before.
func (e *engine) forget(c *call) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, other := range e.queue {
		if other == c {
			e.queue = append(e.queue[:i], e.queue[i+1:]...)
			break
		}
	}
	return c.sent
}

// load takes the next batch off the queue. mu is held.
func (e *engine) load() []*call {
	n := min(len(e.queue), maxBatch)
	batch := e.queue[:n:n]
	e.queue = e.queue[n:]
	if len(e.queue) == 0 {
		e.queue = nil
	}
	for _, c := range batch {
		c.sent = true
	}
	return batch
}

// takeOff starts a goroutine that sends the batch. mu is held.
func (e *engine) takeOff(batch []*call) {
	e.work.Go(func() {
		for len(batch) > 0 && e.fly(batch) {
			batch = e.land()
		}
	})
}

// land gives the next batch, or ends the flight.
func (e *engine) land() []*call {
	e.mu.Lock()
	defer e.mu.Unlock()
	batch := e.load()
	if len(batch) == 0 {
		e.flights--
	}
	return batch
}

// fly sends one batch and hands out the answers. It reports false when that took too
// long: the callers were told, and another flight took its place.
func (e *engine) fly(batch []*call) bool {
	var over atomic.Bool
	timer := time.AfterFunc(e.timeout, func() {
		if !over.CompareAndSwap(false, true) {
			return
		}
		hand(batch, nil, time.Time{}, &sentError{sent: true, err: errTimeout})
		if next := e.land(); len(next) > 0 {
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.closed {
				hand(next, nil, time.Time{}, &sentError{err: backend.ErrClosed})
				return
			}
			e.takeOff(next)
		}
	})
	defer timer.Stop()
	ctx, cancel := context.WithTimeoutCause(e.base, e.timeout, errTimeout)
	defer cancel()
	answers, asked, err := e.exchange(ctx, batch)
	if !over.CompareAndSwap(false, true) {
		return false
	}
	hand(batch, answers, asked, err)
	return true
}

// hand gives each call of the batch its answer.
func hand(batch []*call, answers []reply, asked time.Time, err error) {
	for i, c := range batch {
		o := outcome{asked: asked, err: err}
		if err == nil {
			o.answer, o.err = answerOf(answers, i)
		}
		c.done <- o
	}
}

// answerOf gives the answer to operation i: a list that begins with a word.
func answerOf(answers []reply, i int) ([]reply, error) {
	if i >= len(answers) || answers[i].kind != listReply || len(answers[i].list) == 0 || answers[i].list[0].kind != textReply {
		return nil, &sentError{sent: true, err: errReply}
	}
	list := answers[i].list
	if list[0].s == "ERR" {
		if len(list) < 2 {
			return nil, &sentError{sent: true, err: errReply}
		}
		return nil, &sentError{sent: true, err: parseServerError(list[1].s)}
	}
	return list, nil
}

// exchange is one batch and its answers. The script is named by its hash. A server that
// does not know it has been restarted, or its scripts were flushed: then its text is
// sent, and hello comes before everything else in the same execution. So a server that
// lost data never executes an operation before it has been asked whether it did.
func (e *engine) exchange(ctx context.Context, batch []*call) ([]reply, time.Time, error) {
	const attempts = 4
	load, greet := false, false
	for range attempts {
		args := e.compose(batch, greet)
		asked := time.Now()
		r, err := e.link.eval(ctx, load, e.key, args)
		switch {
		case errors.Is(err, errNoScript):
			load, greet = true, true
			continue
		case err != nil:
			if ctx.Err() != nil && e.base.Err() == nil {
				err = errTimeout
			}
			return nil, asked, &sentError{sent: true, err: err}
		case r.kind != listReply || len(r.list) == 0:
			return nil, asked, &sentError{sent: true, err: errReply}
		}
		answers := r.list[1:]
		switch r.list[0].s {
		case "OK":
			if greet {
				if answers, err = e.welcomed(answers); err != nil {
					return nil, asked, &sentError{sent: true, err: err}
				}
			}
			return answers, asked, nil
		case "MARKER":
			greet = true
		case "FORMAT":
			return nil, asked, &sentError{err: errFormat}
		default:
			return nil, asked, &sentError{sent: true, err: errReply}
		}
	}
	return nil, time.Time{}, &sentError{err: errors.New("the server keeps losing its scripts or its data")}
}

// compose gives the arguments of the script.
func (e *engine) compose(batch []*call, greet bool) []string {
	e.mu.Lock()
	generation := e.generation
	e.mu.Unlock()
	n := 2
	for _, c := range batch {
		n += len(c.args)
	}
	var hello []string
	if greet {
		hello = append([]string{generation}, e.hello()...)
		n += 2 + len(hello)
	}
	args := append(make([]string, 0, n), generation, e.mode)
	if greet {
		args = append(append(args, "hello", strconv.Itoa(len(hello))), hello...)
	}
	for _, c := range batch {
		args = append(args, c.args...)
	}
	return args
}

// welcomed takes hello's answer off the front of the others.
func (e *engine) welcomed(answers []reply) ([]reply, error) {
	hello, err := answerOf(answers, 0)
	if err != nil {
		return nil, err
	}
	d := decoder{list: hello[1:]}
	generation := d.text()
	d.int() // until when nothing is granted: told where it matters
	w := welcome{longest: d.int()}
	if d.err != nil || generation == "" {
		return nil, errReply
	}
	e.mu.Lock()
	w.changed = e.generation != "" && e.generation != generation
	e.generation = generation
	e.mu.Unlock()
	e.learn(w)
	return answers[1:], nil
}

// close ends all calls and waits until everything that was started is gone.
func (e *engine) close() {
	e.mu.Lock()
	e.closed = true
	queue := e.queue
	e.queue = nil
	e.mu.Unlock()
	hand(queue, nil, time.Time{}, &sentError{err: backend.ErrClosed})
	e.cancel()
	e.work.Wait()
}
