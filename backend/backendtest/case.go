package backendtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// Case is one thing that a backend has to do.
type Case struct {
	// ID of the line of the contract that the case belongs to: "C1".
	ID string
	// Name is unique among the cases of one ID.
	Name string
	// Rule that the case checks, in one sentence. Every failure carries it.
	Rule string
	// Restarts is true when the case restarts the store: it needs Harness.Restart, and nothing
	// else may run on the store at the same time.
	Restarts bool
	// Crowds is true when the case has many leases and processes of its own. Run runs one such
	// case at a time, so that each has most of a small machine.
	Crowds bool
	// Alone is true when the case loads the store as much as it can. Run runs no other case
	// beside it.
	Alone bool
	// Needs reports whether a backend has the capabilities that the case needs. Nil: the case
	// needs none.
	Needs func(backend.Capabilities) bool

	run func(*env)
}

// Result is the outcome of a case.
type Result struct {
	Case Case
	// Skipped says why the case does not apply; empty when it was run.
	Skipped string
	// Failures are the rules that the backend broke; none: the case passed.
	Failures []string
	// Log has the messages that the case logged.
	Log []string
	// Took is how long it ran.
	Took time.Duration

	unjudged error         // why the machine was too busy; nil: it was not
	ttl      time.Duration // of the cases that wait for something to expire
}

// Passed reports whether the case was run and had no failures.
func (r Result) Passed() bool { return r.Skipped == "" && len(r.Failures) == 0 }

// Cases returns all cases, in the order of their IDs. The caller owns the slice.
func Cases() []Case {
	return slices.Concat(
		exclusionCases(),
		inspectionCases(),
		tokenCases(),
		orderCases(),
		expiryCases(),
		loadCases(),
		identityCases(),
		repetitionCases(),
		abandonCases(),
		deadWaiterCases(),
		leftCases(),
		breakCases(),
		breakManyCases(),
		watchCases(),
		inputCases(),
		capabilityCases(),
		contextCases(),
		causeCases(),
		closeCases(),
		lateCases(),
		restartCases(),
		crashCases(),
	)
}

// Run runs the case against the store of h. On a machine that is too busy to judge the backend the case
// is run again with twice the TTL, three times at most. It fails if the store has left a call without
// an answer each time, and is skipped if the TTL was too short each time. Run is safe for concurrent use
// for cases that do not restart the store.
func (c Case) Run(ctx context.Context, h Harness) Result {
	const tries = 3
	for n := 1; ; n++ {
		r := c.once(ctx, h)
		if r.unjudged != nil && len(r.Failures) == 0 && n < tries {
			h.TTL = 2 * r.ttl
			continue
		}
		if errors.Is(r.unjudged, backend.ErrUnavailable) && len(r.Failures) == 0 {
			r.Failures, r.Skipped = append(r.Failures, fmt.Sprintf("%s/%s: not judged, %d times: %s\n\trule: %s", c.ID, c.Name, tries, r.Skipped, c.Rule)), ""
		}
		return r
	}
}

// once runs the case. It returns when the case has ended and its backend values are closed, or when it
// took so much too long that it is given up: its goroutines stay behind then, and the result has their
// stacks.
func (c Case) once(ctx context.Context, h Harness) Result {
	began := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	e := &env{c: c, h: h, ctx: ctx, cancel: cancel, limit: make(chan time.Duration, 1), over: make(chan struct{}), text: rand.Text()}
	label := pprof.Labels("case", c.ID+"/"+c.Name)
	go pprof.Do(ctx, label, func(context.Context) { e.main() })
	limit := time.NewTimer(openLimit)
	defer limit.Stop()
	for hung := 0; ; {
		select {
		case <-e.over:
			return e.result(time.Since(began))
		case d := <-e.limit:
			limit.Reset(d)
		case at := <-limit.C:
			limit.Reset(graceLimit)
			hung++
			switch hung {
			case 1:
				e.Errorf("not done after %s; its goroutines:\n%s", at.Sub(began).Round(time.Millisecond), stacks(c.ID+"/"+c.Name))
				cancel(errTooLong)
			case 2:
				e.Errorf("a call did not end %s after its context", graceLimit)
				go e.cleanUp() // closing the backend values may help
			default:
				e.Errorf("a call did not end %s after its backend was closed", graceLimit)
				return e.result(time.Since(began))
			}
		}
	}
}

const (
	openLimit  = time.Minute
	graceLimit = 20 * time.Second
)

// timeLimit is how long the case may take. It is a time-out against hangs, far above what any
// case needs.
func (e *env) timeLimit() time.Duration {
	const work, waits, restarts = 2 * time.Minute, 8, 4
	d := work + waits*(e.ttl()+e.caps.ExpiryLag+e.h.Slack)
	if e.c.Restarts {
		d += time.Duration(restarts+e.h.Kills) * e.afterRestart()
	}
	return d
}

// stacks returns those of the goroutines with the label: of the case, and of the backend values
// that it opened.
func stacks(label string) string {
	var all, some strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&all, 1); err != nil {
		return err.Error()
	}
	for block := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(block, strconv.Quote(label)) {
			some.WriteString(block + "\n\n")
		}
	}
	return some.String()
}

// env is one run of a case. It is the T of the case and of its harness.
type env struct {
	c    Case
	h    Harness
	caps backend.Capabilities
	b    backend.Backend // that no case closes

	ctx    context.Context //nolint:containedctx // it is the T of a case, which has a Context
	cancel context.CancelCauseFunc
	limit  chan time.Duration // how long the case may take, once that is known
	over   chan struct{}      // closed when the case and its cleanups are done
	text   string             // is in the names of this case, and of no other
	names  atomic.Int64       // how many there are

	// The IDs of leases of which an Acquire had no answer: the store may have granted it; and of
	// those that were gone when a Release was sent again.
	unanswered, perhapsReleased sync.Map

	mu       sync.Mutex
	closed   bool      // the result was taken; later failures and messages are dropped
	still    time.Time // when a call last failed that stood still
	skipped  string
	unjudged error // why the machine was too busy
	failures []string
	log      []string
	cleanups []func()
	values   []backend.Backend // all that were opened
}

// main runs the case and then its cleanups. It is a goroutine of its own, so that
// Fatalf can end it.
func (e *env) main() {
	defer close(e.over)
	defer e.cleanUp()
	e.b = e.open()
	e.caps = e.b.Capabilities()
	e.h = e.h.withDefaults(e.caps)
	e.limit <- e.timeLimit()
	if c := e.c; c.Needs != nil && !c.Needs(e.caps) {
		e.skip("the backend does not claim what the case needs")
		return
	}
	if e.c.Restarts && e.h.Restart == nil {
		e.skip("no restart: " + e.h.NoRestart)
		return
	}
	e.c.run(e)
}

func (e *env) cleanUp() {
	for {
		e.mu.Lock()
		n := len(e.cleanups)
		if n == 0 {
			e.mu.Unlock()
			return
		}
		f := e.cleanups[n-1]
		e.cleanups = e.cleanups[:n-1]
		e.mu.Unlock()
		done := make(chan struct{})
		go func() { // Fatalf in a cleanup ends that cleanup only
			defer close(done)
			f()
		}()
		<-done
	}
}

func (e *env) skip(why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.skipped = why
}

func (e *env) result(took time.Duration) Result {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	return Result{Case: e.c, Skipped: e.skipped, Failures: e.failures, Log: e.log, Took: took, unjudged: e.unjudged, ttl: e.h.TTL}
}

// Helper does nothing: failures name the case, not a line.
func (e *env) Helper() {}

// Logf logs a message.
func (e *env) Logf(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.log = append(e.log, fmt.Sprintf(format, args...))
	}
}

// Errorf records a failure. It is safe for concurrent use.
func (e *env) Errorf(format string, args ...any) { e.fail(fmt.Sprintf(format, args...)) }

// Fatalf records a failure and ends the calling goroutine: that of the case, or one that all
// started. A store that gave no answer because the machine stood still has not failed: then the case is
// not judged.
func (e *env) Fatalf(format string, args ...any) {
	for _, x := range args {
		if err, ok := x.(error); ok && errors.Is(err, backend.ErrUnavailable) && e.stood(0) {
			e.busy(fmt.Errorf("%w: %w", errStoodStill, err))
		}
	}
	e.fail(fmt.Sprintf(format, args...))
	runtime.Goexit()
}

// endIfFailed ends the case when it has failed, or cannot be judged.
func (e *env) endIfFailed() {
	if e.failed() {
		runtime.Goexit()
	}
}

// failed reports whether a failure was recorded, or the case cannot be judged.
func (e *env) failed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.failures) > 0 || e.skipped != ""
}

// maxFailures bounds the failures that one case reports.
const maxFailures = 20

func (e *env) fail(text string) {
	at := callers()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.skipped != "" || len(e.failures) >= maxFailures {
		return
	}
	e.failures = append(e.failures, fmt.Sprintf("%s/%s: %s\n\trule: %s\n\tat: %s", e.c.ID, e.c.Name, text, e.c.Rule, at))
}

// callers returns the path from the case to the failure: "order.go:31 < env.go:200".
func callers() string {
	const most, skip = 16, 4
	pcs := make([]uintptr, most)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(skip, pcs)])
	var at []string
	for {
		f, more := frames.Next()
		file := f.File[strings.LastIndexByte(f.File, '/')+1:]
		if file == "case.go" || !strings.Contains(f.Function, "/backendtest.") {
			break
		}
		at = append(at, fmt.Sprintf("%s:%d", file, f.Line))
		if !more {
			break
		}
	}
	slices.Reverse(at)
	return strings.Join(at, " > ")
}

// Cleanup registers f to be called when the case has ended, last registered first.
func (e *env) Cleanup(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cleanups = append(e.cleanups, f)
}

// Context ends when the case has ended or took too long.
func (e *env) Context() context.Context { return e.ctx }
