package holdfast_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/simulate"
)

// All goes through all pages, ends where the loop does, and reports an error last.
func TestAll(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	const locks = 2*backend.MaxListLimit + 1
	for i := range locks {
		mustAcquire(t, c, fmt.Sprintf("n%06d", i))
	}
	n := 0
	for info, err := range c.All(t.Context(), "n") {
		if want := fmt.Sprintf("n%06d", n); err != nil || info.Name != want {
			t.Fatalf("%s, %v; want %s", info.Name, err, want)
		}
		n++
	}
	if n != locks {
		t.Errorf("%d of %d locks", n, locks)
	}
	for _, err := range c.All(t.Context(), "") {
		if err != nil {
			t.Error(err)
		}
		break
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	n = 0
	for _, err := range c.All(t.Context(), "") {
		if n++; !errors.Is(err, holdfast.ErrClosed) {
			t.Errorf("the client is closed: %v", err)
		}
	}
	if n != 1 {
		t.Errorf("%d errors", n)
	}
}

// breakage is a backend with a fault in the first break.
type breakage struct {
	backend.Backend
	breaks int
	first  func(ctx context.Context, call func() (backend.BreakResult, error)) (backend.BreakResult, error)
}

func (b *breakage) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	call := func() (backend.BreakResult, error) { return b.Backend.Break(ctx, req) }
	if b.breaks++; b.breaks == 1 {
		return b.first(ctx, call)
	}
	return call()
}

// A break that may have been done is not retried: a retry would take the lock from its new holder.
// A break that was not done is retried.
func TestBreakOnce(t *testing.T) {
	t.Parallel()
	lost := func(_ context.Context, call func() (backend.BreakResult, error)) (backend.BreakResult, error) {
		_, _ = call()
		return backend.BreakResult{}, unavailable(true)
	}
	silent := func(ctx context.Context, call func() (backend.BreakResult, error)) (backend.BreakResult, error) {
		_, _ = call()
		<-ctx.Done()
		return backend.BreakResult{}, ctx.Err()
	}
	refused := func(context.Context, func() (backend.BreakResult, error)) (backend.BreakResult, error) {
		return backend.BreakResult{}, unavailable(false)
	}
	for _, c := range []struct {
		name  string
		first func(context.Context, func() (backend.BreakResult, error)) (backend.BreakResult, error)
		again bool
	}{{"the answer is lost", lost, false}, {"there is no answer", silent, false}, {"it was not done", refused, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, _ := newFaults(t)
				b := &breakage{Backend: f.Backend, first: c.first}
				f.Backend = b
				client := newClient(t, f, holdfast.Config{})
				held, err := client.Acquire(t.Context(), "n")
				if err != nil {
					t.Fatal(err)
				}
				_, err = client.Break(t.Context(), "n", "test")
				switch {
				case c.again && (err != nil || b.breaks != 2):
					t.Errorf("asked %d times: %v", b.breaks, err)
				case !c.again && (!errors.Is(err, holdfast.ErrUnavailable) || b.breaks != 1):
					t.Errorf("asked %d times: %v", b.breaks, err)
				case !c.again:
					mayHold(t, err)
				}
				<-held.Context().Done()
			})
		})
	}
}

// A client knows of its own break when that has returned, also on a backend that does not report losses by push.
func TestOwnBreak(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]holdfast.Option{"session": nil, "timed": {holdfast.NoRenew()}, "another TTL": {holdfast.TTL(time.Hour)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, _ := newFaults(t)
				f.Backend = mute{f.Backend}
				c := newClient(t, f, holdfast.Config{})
				lock := mustAcquire(t, c, "n", opts...)
				if _, err := c.Break(t.Context(), "n", "stuck"); err != nil {
					t.Fatal(err)
				}
				var lost *holdfast.LostError
				if err := lock.Err(); !errors.As(err, &lost) || lost.Cause != holdfast.CauseBroken || lost.Reason != "stuck" {
					t.Errorf("after the break: %v", err)
				}
			})
		})
	}
}

// The answer to an acquire is on its way when the same client breaks the lock: it does not get the lock.
func TestOwnBreakOfAGrantOnItsWay(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]holdfast.Option{"session": nil, "timed": {holdfast.NoRenew()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, store := newFaults(t)
				f.Backend = mute{f.Backend}
				c, other := newClient(t, f, holdfast.Config{}), newClient(t, openStore(t, store), holdfast.Config{})
				first := true
				slow := func(_ context.Context, call func() (backend.Grant, error)) (backend.Grant, error) {
					g, err := call()
					if first {
						first = false
						time.Sleep(time.Second)
					}
					return g, err
				}
				f.acquire.Store(&slow)
				got := make(chan error, 1)
				go func() {
					_, err := c.TryAcquire(t.Context(), "n", opts...)
					got <- err
				}()
				synctest.Wait()
				if _, err := c.Break(t.Context(), "n", "stuck"); err != nil {
					t.Fatal(err)
				}
				mustAcquire(t, other, "n")
				if err := <-got; !errors.Is(err, holdfast.ErrHeld) {
					t.Errorf("another client has it, and the acquire returned %v", err)
				}
			})
		})
	}
}

// broken answers each Break with its holders.
type broken struct {
	backend.Backend
	holders []backend.Holder
}

func (b broken) Break(context.Context, backend.BreakRequest) (backend.BreakResult, error) {
	return backend.BreakResult{Token: 9, Broken: b.holders}, nil
}

// A break ends no lock of the client but those that it took: not where the holder has no lease ID, as a leader
// election of client-go has none, nor one of that ID on another lock, nor a later grant of it.
func TestOwnBreakEndsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		b := &broken{Backend: f.Backend, holders: []backend.Holder{{Owner: "pod"}}}
		f.Backend = b
		c := newClient(t, f, holdfast.Config{})
		if _, err := c.Break(t.Context(), "other", "stuck"); err != nil { // there is no session yet
			t.Fatal(err)
		}
		locks := []*holdfast.Lock{
			mustAcquire(t, c, "n"), mustAcquire(t, c, "m", holdfast.NoRenew()), mustAcquire(t, c, "l", holdfast.TTL(time.Hour)),
		}
		for _, lock := range locks {
			b.holders = append(b.holders, backend.Holder{Lease: lock.Lease().ID, Token: lock.Token()})
		}
		for _, name := range []string{"other", "n", "m", "l"} {
			for i := range b.holders {
				if b.holders[i].Token++; i > 0 && name == "other" {
					b.holders[i].Token = locks[i-1].Token()
				}
			}
			if _, err := c.Break(t.Context(), name, "stuck"); err != nil {
				t.Fatal(err)
			}
			for _, lock := range locks {
				if err := lock.Err(); err != nil {
					t.Errorf("%s after a break of %s: %v", lock.Name(), name, err)
				}
			}
		}
	})
}

// brief is a backend whose streams break as soon as they have begun, or after a while.
type brief struct {
	backend.Backend
	lasts  atomic.Int64
	begins atomic.Int64
	at     atomic.Pointer[time.Time] // when the newest began
}

func (b *brief) Watch(ctx context.Context, _ backend.WatchRequest, deliver func(backend.Event)) error {
	now := time.Now()
	b.at.Store(&now)
	b.begins.Add(1)
	deliver(backend.Event{Kind: backend.EventWatching})
	simulate.Sleep(ctx, time.Duration(b.lasts.Load()))
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &backend.UnavailableError{Backend: "test", Op: "watch", Err: errors.New("the stream broke")}
}

// A stream that breaks at its start each time, as through a proxy that does not support streams, is
// retried less and less often. A stream that broke after it had lasted is retried immediately.
func TestWatchThatBreaksAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		b := &brief{Backend: f.Backend}
		f.Backend = b
		c := newClient(t, f, holdfast.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() {
			for _, err := range c.Watch(ctx, "") {
				if err != nil {
					over <- err
				}
			}
		}()
		time.Sleep(time.Minute)
		if n := b.begins.Load(); n > 70 {
			t.Errorf("a stream that breaks immediately was opened %d times in a minute", n)
		}
		b.lasts.Store(int64(time.Minute))
		time.Sleep(5 * time.Second) // the next stream lasts
		lasting := *b.at.Load()
		time.Sleep(time.Minute)
		if late := b.at.Load().Sub(lasting) - time.Minute; late < 0 || late > 100*time.Millisecond {
			t.Errorf("it began again %s after a stream that had lasted for a minute", late)
		}
		cancel()
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// quarantined makes the backend grant nothing for the given time.
func (f *faults) quarantined(d time.Duration) {
	until := time.Now().Add(d)
	refuse := func(_ context.Context, do func() (backend.Grant, error)) (backend.Grant, error) {
		left := time.Until(until)
		if left <= 0 {
			return do()
		}
		q := &backend.QuarantineError{Backend: "memory", Reason: "it is a test", Left: left, Until: until, Parameter: "quarantine=off"}
		return backend.Grant{}, q.Unavailable("memory", "acquire", false)
	}
	f.acquire.Store(&refuse)
}

// logged is a log that a test can read.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) lines(with string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), with)
}

// A store in quarantine is unavailable. The remaining time and the reason are reported. The lock is
// not held, and no lease may be held.
func TestQuarantine(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	log := &logged{}
	c := newClient(t, f, holdfast.Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	f.quarantined(time.Hour)
	told := func(err error) {
		t.Helper()
		q, ok := errors.AsType[*holdfast.QuarantineError](err)
		op, _ := errors.AsType[*holdfast.OpError](err)
		switch {
		case !ok || op == nil:
			t.Fatalf("%v; want a *QuarantineError in an *OpError", err)
		case q.Left <= 50*time.Minute || q.Reason != "it is a test" || op.MayHold:
			t.Errorf("told %+v, may hold: %t", q, op.MayHold)
		case !errors.Is(err, holdfast.ErrUnavailable) || !errors.Is(err, holdfast.ErrQuarantine) || errors.Is(err, holdfast.ErrHeld):
			t.Errorf("the kinds of %v", err)
		case !strings.Contains(err.Error(), "it is a test") || !strings.Contains(err.Error(), "quarantine=off"):
			t.Errorf("said: %v", err)
		}
	}
	_, err := c.TryAcquire(t.Context(), "a")
	told(err)
	_, err = c.Acquire(t.Context(), "a", holdfast.Wait(50*time.Millisecond))
	told(err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = c.Acquire(ctx, "a")
	told(err)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v; the context ended it", err)
	}
	if n := log.lines("in quarantine"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
}

// A waiter gets the lock when the quarantine has ended.
func TestQuarantineEnds(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	const lasts = 300 * time.Millisecond
	began := time.Now()
	f.quarantined(lasts)
	lock, err := c.Acquire(t.Context(), "a", holdfast.Wait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < lasts {
		t.Errorf("granted after %s", took)
	}
	if err := lock.Release(t.Context()); err != nil {
		t.Error(err)
	}
	// The quarantine ended long before the lock turns out to be held.
	lock, err = c.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	f.quarantined(lasts)
	other := newClient(t, f, holdfast.Config{})
	_, err = other.Acquire(t.Context(), "a", holdfast.Wait(2*lasts))
	held, ok := errors.AsType[*holdfast.HeldError](err)
	if !ok || len(held.Holders) != 1 || held.Holders[0].Token != lock.Token() {
		t.Errorf("after the quarantine: %v", err)
	}
}

// When Wait has elapsed, the store is asked for the holder of the lock. If it does not answer, the
// lock is not called held. If the lock was granted just then, the caller has it. When the deadline of the context ended the wait,
// no further acquire is sent, and the error has its cause and the holder. A context that was cancelled has its cause alone.
func TestWaitEndsWithTheTruth(t *testing.T) {
	t.Parallel()
	f, store := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	holder := newClient(t, openStore(t, store), holdfast.Config{})
	lock, err := holder.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	at := func(fault func(ctx context.Context, do func() (backend.Grant, error)) (backend.Grant, error)) error {
		wait := func(ctx context.Context, do func() (backend.Grant, error)) (backend.Grant, error) {
			if f.lastAsked.Load().Wait {
				return do()
			}
			return fault(ctx, do)
		}
		f.acquire.Store(&wait)
		got, err := c.Acquire(t.Context(), "a", holdfast.Wait(20*time.Millisecond))
		if err == nil {
			err = got.Release(t.Context())
		}
		return err
	}
	err = at(func(context.Context, func() (backend.Grant, error)) (backend.Grant, error) {
		return backend.Grant{}, unavailable(false)
	})
	if !errors.Is(err, holdfast.ErrUnavailable) || errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("with an unavailable store: %v", err)
	}
	err = at(func(context.Context, func() (backend.Grant, error)) (backend.Grant, error) {
		return backend.Grant{}, (&backend.QuarantineError{Backend: "memory", Left: time.Hour}).Unavailable("memory", "acquire", false)
	})
	if !errors.Is(err, holdfast.ErrQuarantine) || errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("where the store is in quarantine: %v", err)
	}
	err = at(func(_ context.Context, do func() (backend.Grant, error)) (backend.Grant, error) { return do() })
	if held, ok := errors.AsType[*holdfast.HeldError](err); !ok || len(held.Holders) != 1 || held.Holders[0].Token != lock.Token() {
		t.Errorf("where it is held: %v", err)
	}
	f.acquire.Store(nil)
	for _, opts := range [][]holdfast.Option{nil, {holdfast.Wait(time.Hour)}} {
		f.acquires.Store(0)
		mine := errors.New("the caller's own")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, mine)
		_, err = c.Acquire(ctx, "a", opts...)
		cancel()
		if held, ok := errors.AsType[*holdfast.HeldError](err); !ok || held.Holders[0].Token != lock.Token() || !errors.Is(err, mine) || !errors.Is(err, holdfast.ErrHeld) || f.acquires.Load() > 1 {
			t.Errorf("at the deadline: %v, after %d requests", err, f.acquires.Load())
		}
		cancelled, end := context.WithCancelCause(t.Context())
		time.AfterFunc(20*time.Millisecond, func() { end(mine) })
		_, err = c.Acquire(cancelled, "a", opts...)
		if errors.Is(err, holdfast.ErrHeld) || !errors.Is(err, mine) {
			t.Errorf("where the caller cancelled: %v", err)
		}
	}
	err = at(func(_ context.Context, do func() (backend.Grant, error)) (backend.Grant, error) {
		if err := lock.Release(t.Context()); err != nil {
			t.Error(err)
		}
		return do()
	})
	if err != nil {
		t.Errorf("where it was free at last: %v", err)
	}
}

// Every exported method refuses nil in place of a context, a function, an option or a list, with an
// error that names it, and changes nothing.
func TestNilArguments(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	lock := mustAcquire(t, c, "held")
	valid := map[reflect.Type]any{
		reflect.TypeFor[holdfast.Lease]():       lock.Lease(),
		reflect.TypeFor[holdfast.LeaseID]():     lock.Lease().ID,
		reflect.TypeFor[holdfast.ListOptions](): holdfast.ListOptions{},
		reflect.TypeFor[[]string]():             []string{"n"},
		reflect.TypeFor[string]():               "n",
		reflect.TypeFor[time.Duration]():        time.Minute,
	}
	tried := 0
	for _, on := range []any{c, lock, holdfast.Locks{lock}} {
		v := reflect.ValueOf(on)
		for m, method := range v.Methods() {
			if m.Name == "SetAsleep" {
				continue // of the tests
			}
			typ := method.Type()
			for bad := range typ.NumIn() {
				if !takesNil(typ, bad) {
					continue
				}
				tried++
				var args []reflect.Value
				for i := range typ.NumIn() {
					in := typ.In(i)
					switch {
					case i == bad && typ.IsVariadic() && i == typ.NumIn()-1:
						args = append(args, reflect.Zero(in.Elem()))
					case i == bad:
						args = append(args, reflect.Zero(in))
					case typ.IsVariadic() && i == typ.NumIn()-1:
					case in.Kind() == reflect.Func:
						args = append(args, reflect.MakeFunc(in, func([]reflect.Value) []reflect.Value {
							t.Errorf("%s: its function was called", m.Name)
							return zeros(in)
						}))
					case in.Kind() == reflect.Interface:
						args = append(args, reflect.ValueOf(t.Context()))
					default:
						if valid[in] == nil {
							t.Fatalf("%s takes a %s", m.Name, in)
						}
						args = append(args, reflect.ValueOf(valid[in]))
					}
				}
				var invalid *holdfast.InvalidError
				if err := failure(method.Call(args)); !errors.As(err, &invalid) {
					t.Errorf("%T.%s, argument %d is nil: %v", on, m.Name, bad+1, err)
				}
			}
		}
	}
	const least = 20
	if tried < least {
		t.Errorf("only %d arguments were nil", tried)
	}
	if err := lock.Err(); err != nil {
		t.Errorf("the lock is gone: %v", err)
	}
	if n := f.acquires.Load(); n != 1 {
		t.Errorf("%d acquires were sent", n)
	}
}

func takesNil(f reflect.Type, i int) bool {
	in := f.In(i)
	if f.IsVariadic() && i == f.NumIn()-1 {
		in = in.Elem()
	}
	switch in.Kind() { //nolint:exhaustive // the others cannot be nil
	case reflect.Interface, reflect.Func, reflect.Slice, reflect.Pointer:
		return true
	default:
		return false
	}
}

func zeros(f reflect.Type) []reflect.Value {
	var out []reflect.Value
	for result := range f.Outs() {
		out = append(out, reflect.Zero(result))
	}
	return out
}

// failure returns the error among the results of a call. An iterator yields it.
func failure(results []reflect.Value) error {
	for _, r := range results {
		if r.Kind() == reflect.Func {
			for _, err := range r.Seq2() {
				if err, ok := reflect.TypeAssert[error](err); ok {
					return err
				}
			}
			return nil
		}
		if err, ok := reflect.TypeAssert[error](r); ok {
			return err
		}
	}
	return nil
}

// A loop over the events may be left at any time, also when its context has ended.
func TestWatchIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		c := newClient(t, f, holdfast.Config{})
		for _, end := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			turns := 0
			for _, err := range c.Watch(ctx, "") {
				turns++
				if err != nil {
					t.Error(err)
				}
				if end {
					cancel()
				}
				break
			}
			cancel()
			if turns != 1 {
				t.Errorf("%d turns", turns)
			}
		}
	})
}
