package redislock

import (
	"cmp"
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// Bounds of group commit: the number of requests in progress at the same time, and the number
// of operations in one of them. Operations that are called while all requests are in progress
// are sent with the next.
const (
	maxRequests = 2
	maxAlone    = 4 // where callers may send their calls themselves, each on a lane; with more callers, larger requests cost less
	maxBatch    = 128
	// Requests of so many operations are worth the wait for another goroutine. See beginAlone.
	worthwhile = 3
)

// unwatched is how long, at most, a caller whose call is queued does not look at the end of its
// context. Nearly all have their answers by then, and a channel that tells of the end costs them more
// than the wait for the answer.
const unwatched = 20 * time.Millisecond

// engine sends operations to the server, concurrent ones in one request. A caller is never
// blocked by the network: it waits for its answer or for the end of its context, which it
// notices within unwatched.
type engine struct {
	link    transport
	runner  *program.Runner
	lanes   *program.Lanes // of the link: few calls are sent by their callers; nil: none is
	key     string         // of the marker
	thin    string         // the key of the thin locks
	mode    string         // the client's quarantine (ms); "-": it has none
	timeout time.Duration
	hello   func(ctx context.Context, again bool) ([]string, error) // the arguments of hello; again: the server may have other settings now
	learn   func(welcome)                                           // called with the answer of hello
	base    context.Context                                         //nolint:containedctx // the life of the engine: ends with close, and with ErrClosed
	cancel  context.CancelCauseFunc
	work    sync.WaitGroup

	mu       sync.Mutex
	urgent   []*call // sent before queue
	queue    []*call
	requests int
	size     float64       // operations of a request, of late
	late     chan struct{} // closed within unwatched; nil: no call was made since the last one was closed
	closed   bool
	identity string // of the data that is known; see lua/main.lua
	unsynced bool   // the run of that identity may lose writes
}

// welcome is the answer of hello.
type welcome struct {
	changed bool  // the data that was known before is gone
	longest int64 // ms
}

// call is one operation on its way to the server, or one lease of an operation of many
// leases.
type call struct {
	op string
	// For acquire, release and check: what all leases of the operation have in common, and
	// the lease.
	terms       terms
	name, lease string
	thin        string   // of a release: the record of the lock if it was thin; see member
	args        []string // of all other operations
	outcome     outcome  // valid once done has received
	done        chan struct{}
	late        <-chan struct{} // closed when it is time to look at the end of the context
	sent        bool            // guarded by engine.mu
}

// outcome is an answer, or the reason why there is none.
type outcome struct {
	answer  []reply // a word and what follows it; nil when the lease was granted or released the short way
	granted granted
	asked   time.Time
	err     error
}

// sentError is the reason why there is no answer. sent: the operation may have been executed.
type sentError struct {
	sent bool
	err  error
}

// Error returns the text of the cause.
func (e *sentError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *sentError) Unwrap() error { return e.err }

func newEngine(over transport, p program.Program, tag, mode string, timeout time.Duration) *engine {
	base, cancel := context.WithCancelCause(context.Background())
	e := &engine{
		link: over, runner: program.NewRunner(p), key: tag + "m", thin: tag + "t", mode: mode, timeout: timeout,
		base: base, cancel: cancel,
	}
	if l, ok := over.(*link); ok {
		e.lanes = l.lanes
	}
	return e
}

// do runs one operation that does not carry many leases. The time that it returns was read
// before the answered request was sent. An urgent operation is sent before all that are
// queued. The error is a *sentError, or the server's error for this operation.
func (e *engine) do(ctx context.Context, urgent bool, op string, args ...string) ([]reply, time.Time, error) {
	o := e.await(ctx, &call{op: op, args: args}, urgent)
	return o.answer, o.asked, o.err
}

// await runs the call and returns its outcome. See do for the error.
func (e *engine) await(ctx context.Context, c *call, urgent bool) outcome {
	var o outcome
	if ctx.Err() != nil { // it is not looked at again for a while: see unwatched
		o.err = &sentError{err: cmp.Or(context.Cause(e.base), context.Cause(ctx))}
	} else if l := e.beginAlone(ctx); l != nil {
		o = e.sendAlone(l, c)
	} else {
		o = e.submit(ctx, c, urgent)
	}
	if o.err != nil {
		o.err = e.named(o.err)
	}
	return o
}

// beginAlone begins a request that the caller sends itself: when no other request is in progress, or requests have been of few
// operations of late, so that more would be lost by handing the call over than is gained by sending several together. nil: it
// must not.
func (e *engine) beginAlone(ctx context.Context) *lone {
	if e.lanes == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || len(e.urgent)+len(e.queue) > 0 || e.requests >= maxAlone || e.requests > 0 && e.size >= worthwhile {
		return nil
	}
	e.requests++
	e.began(1)
	e.soon()
	e.work.Add(1)
	return &lone{Context: ctx, until: time.Now().Add(e.timeout)}
}

// endAlone ends it, and sends what was queued meanwhile.
func (e *engine) endAlone() {
	e.mu.Lock()
	e.goOn()
	e.mu.Unlock()
	e.work.Done()
}

// began notes the size of a request. mu is held.
func (e *engine) began(size int) {
	const memory = 8 // requests
	e.size += (float64(size) - e.size) / memory
}

// result waits for the outcome of a call that another goroutine sends. When the engine is
// closed such calls end immediately.
func (e *engine) result(ctx context.Context, c *call) outcome {
	select {
	case <-c.done:
		return c.outcome
	case <-c.late:
	}
	select {
	case <-c.done:
		return c.outcome
	case <-ctx.Done():
		return outcome{err: &sentError{sent: e.forget(c), err: context.Cause(ctx)}}
	}
}

// submit queues the call, starts a request unless the maximum is in progress, and waits for
// the outcome.
func (e *engine) submit(ctx context.Context, c *call, urgent bool) outcome {
	c.done = make(chan struct{}, 1)
	if err := e.enqueue(c, urgent); err != nil {
		return outcome{err: &sentError{err: err}}
	}
	return e.result(ctx, c)
}

func (e *engine) enqueue(c *call, urgent bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return backend.ErrClosed
	}
	if urgent {
		e.urgent = append(e.urgent, c)
	} else {
		e.queue = append(e.queue, c)
	}
	c.late = e.soon()
	e.start()
	return nil
}

// soon returns a channel that is closed within unwatched. mu is held.
func (e *engine) soon() <-chan struct{} {
	if e.late == nil {
		e.late = make(chan struct{})
		time.AfterFunc(unwatched, e.tick)
	}
	return e.late
}

// tick tells the callers whose calls are queued to look at their contexts, and does so for those who send theirs themselves.
func (e *engine) tick() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.late)
	e.late = nil
	if e.lanes != nil && e.requests > 0 { // one that its caller sends has no lane yet, or none between two commands
		e.lanes.Interrupt()
		e.soon()
	}
}

// sendAlone sends a call that shares its request with no other, from the goroutine of its
// caller, so that no other goroutine has to be woken for it. If that needs a new connection or a
// greeting first, the call is submitted instead, because these do not end with the context.
func (e *engine) sendAlone(l *lone, c *call) outcome {
	outcomes, asked, err := e.exchange(l, []*call{c})
	e.endAlone()
	switch {
	case err == nil:
		outcomes[0].asked = asked
		return outcomes[0]
	case l.Err() != nil:
		return outcome{err: &sentError{sent: true, err: context.Cause(l.Context)}}
	case errors.Is(err, program.ErrNoConnection):
		return e.submit(l.Context, c, true)
	}
	return outcome{err: err}
}

// goOn ends a request, and begins one for the calls that were queued during it. mu is held.
func (e *engine) goOn() {
	e.requests--
	e.start()
}

// forget removes the call from the queue. It reports whether the call was sent before.
func (e *engine) forget(c *call) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	same := func(other *call) bool { return other == c }
	e.urgent = slices.DeleteFunc(e.urgent, same)
	e.queue = slices.DeleteFunc(e.queue, same)
	return c.sent
}

// load takes the next batch from the queues. mu is held.
func (e *engine) load() []*call {
	n := min(len(e.urgent), maxBatch)
	m := min(len(e.queue), maxBatch-n)
	batch := slices.Concat(e.urgent[:n], e.queue[:m])
	e.urgent, e.queue = rest(e.urgent, n), rest(e.queue, m)
	for _, c := range batch {
		c.sent = true
	}
	return batch
}

// rest returns the queue without its first n calls.
func rest(queue []*call, n int) []*call {
	clear(queue[:n])
	if n == len(queue) {
		return queue[:0]
	}
	return queue[n:]
}

// start begins a request if any call is queued: in a goroutine that sends for as long as there are some. mu is held.
func (e *engine) start() {
	if len(e.urgent)+len(e.queue) == 0 || e.requests >= maxRequests {
		return
	}
	e.requests++
	e.work.Go(func() {
		for {
			runtime.Gosched() // so that the callers that have their answers can call again, and share the next request
			if batch := e.nextBatch(); len(batch) == 0 || !e.send(batch) {
				return
			}
		}
	})
}

// nextBatch returns the next batch, or ends the last request.
func (e *engine) nextBatch() []*call {
	e.mu.Lock()
	defer e.mu.Unlock()
	batch := e.load()
	if len(batch) == 0 {
		e.requests--
	} else {
		e.began(len(batch))
	}
	return batch
}

// send sends one batch and delivers the answers. It returns false if that took too long: the
// callers have got an error by then, and another request has taken its place.
func (e *engine) send(batch []*call) bool {
	var over atomic.Bool
	timer := time.AfterFunc(e.timeout, func() {
		if !over.CompareAndSwap(false, true) {
			return
		}
		hand(batch, nil, time.Time{}, &sentError{sent: true, err: backend.NoAnswer(e.timeout)})
		e.mu.Lock()
		defer e.mu.Unlock()
		e.goOn()
	})
	defer timer.Stop()
	ctx, cancel := backend.WithTimeout(e.base, e.timeout)
	defer cancel()
	answers, asked, err := e.exchange(ctx, batch)
	if !over.CompareAndSwap(false, true) {
		return false
	}
	hand(batch, answers, asked, err)
	return true
}

// hand delivers to each call of the batch its answer.
func hand(batch []*call, answers []outcome, asked time.Time, err error) {
	for i, c := range batch {
		o := outcome{asked: asked, err: err}
		if err == nil {
			o = answers[i]
			o.asked = asked
		}
		c.outcome = o
		c.done <- struct{}{}
	}
}

// exchange sends one batch and returns its answers. A server that does not know the program,
// or has not been greeted since it was started, does nothing. Then hello is sent before the
// operations, in the same execution. So a server that lost data never executes an operation
// before hello has checked for the loss.
//
// A thin lock that is released alone needs no program: see lua/head.lua. If it is not thin any
// more, or its data is lost, nothing was removed, and the program is asked.
func (e *engine) exchange(ctx context.Context, batch []*call) ([]outcome, time.Time, error) {
	const attempts = 4
	m := manifestOf(batch)
	load, greet := false, !e.acquainted()
	if len(batch) == 1 && batch[0].thin != "" {
		asked := time.Now()
		r, err := e.link.send(ctx, "ZREM", e.thin, batch[0].thin)
		gone, err := program.Answer{Reply: r, Err: err}.Number()
		if gone > 0 {
			return []outcome{{}}, asked, nil
		} else if err != nil {
			return nil, asked, e.failure(ctx, err)
		}
	}
	for range attempts {
		if _, alone := ctx.(*lone); alone && greet {
			return nil, time.Time{}, program.ErrNoConnection
		}
		args, err := e.compose(ctx, &m, greet)
		if err != nil {
			return nil, time.Time{}, &sentError{err: err}
		}
		asked := time.Now()
		r, err := e.runner.Run(ctx, e.link.send, load, args[0], e.key, args)
		switch {
		case errors.Is(err, errUnknown):
			load, greet = true, true
			continue
		case err != nil:
			return nil, asked, e.failure(ctx, err)
		case r.Kind == program.TextReply && m.alone() && !greet:
			g, err := briefly(r)
			if err != nil {
				return nil, asked, &sentError{sent: true, err: err}
			}
			return []outcome{{granted: g}}, asked, nil
		case r.Kind != program.ListReply || len(r.List) == 0:
			return nil, asked, &sentError{sent: true, err: program.ErrReply}
		}
		answers := r.List[1:]
		switch r.List[0].S {
		case "OK":
			if greet {
				if answers, err = e.welcomed(answers); err != nil {
					return nil, asked, &sentError{sent: true, err: err}
				}
			}
			return m.outcomes(answers), asked, nil
		case "MARKER":
			greet = true
		default:
			return nil, asked, &sentError{sent: true, err: program.ErrReply}
		}
	}
	return nil, time.Time{}, &sentError{err: errors.New("the server keeps losing its functions or its data")}
}

// failure is the error of a request without an answer. Nothing is sent twice, but what a server refused because it does
// not have the data: so nothing was executed if there was no connection.
func (e *engine) failure(ctx context.Context, err error) error {
	unsent := connect.IsDial(err)
	if e.base.Err() != nil {
		err = backend.ErrClosed
	} else if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		err = backend.NoAnswer(e.timeout)
	}
	return &sentError{sent: !unsent, err: err}
}

// acquainted reports whether hello was ever answered.
func (e *engine) acquainted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.identity != ""
}

// compose returns the arguments of the program.
func (e *engine) compose(ctx context.Context, m *manifest, greet bool) ([]string, error) {
	e.mu.Lock()
	identity, unsynced := e.identity, e.unsynced
	e.mu.Unlock()
	var hello []string
	if greet {
		rest, err := e.hello(ctx, identity != "")
		if err != nil {
			return nil, err
		}
		hello = append(append([]string{identity}, rest...), flag(unsynced))
	}
	args := append(make([]string, 0, m.size+len(hello)+4), identity, e.mode)
	if greet {
		args = append(append(args, "hello", strconv.Itoa(len(hello))), hello...)
	}
	return m.write(args), nil
}

// welcomed takes hello's answer off the front of the answers.
func (e *engine) welcomed(answers []reply) ([]reply, error) {
	hello, err := wordsOf(answers, 0)
	if err != nil {
		return nil, err
	}
	d := decode(hello[1:])
	identity := d.Text()
	d.Int() // until when nothing is granted: returned where it matters
	w := welcome{longest: d.Int()}
	unsynced := d.Int() == 0
	generation, _, ok := strings.Cut(identity, " ")
	if d.Err != nil || !ok {
		return nil, program.ErrReply
	}
	e.mu.Lock()
	before, _, known := strings.Cut(e.identity, " ")
	w.changed = known && before != generation
	e.identity, e.unsynced = identity, unsynced
	e.mu.Unlock()
	e.learn(w)
	return answers[1:], nil
}

// close ends all calls and waits until everything that was started has ended.
func (e *engine) close() {
	e.mu.Lock()
	e.closed = true
	queue := slices.Concat(e.urgent, e.queue)
	e.urgent, e.queue = nil, nil
	e.mu.Unlock()
	hand(queue, nil, time.Time{}, &sentError{err: backend.ErrClosed})
	e.cancel(backend.ErrClosed)
	e.link.hangUp()
	e.work.Wait()
}
