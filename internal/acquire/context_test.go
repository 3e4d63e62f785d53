package acquire_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/internal/acquire"
)

type key struct{}

var (
	errParent = errors.New("the parent ended")
	errLate   = errors.New("too late")
	errEnded  = errors.New("ended")
)

// The context of a request ends as one of package context does, whether something waits for its end or
// not, and whenever it is first asked.
func TestRequestContext(t *testing.T) {
	t.Parallel()
	type subject struct {
		context.Context //nolint:containedctx // the subject of the test
		parent          context.CancelCauseFunc
		finish          func()
		end             func(error)
	}
	for name, c := range map[string]struct {
		timed      bool
		end        func(subject)
		err, cause error
	}{
		"with its parent":             {false, func(x subject) { x.parent(errParent) }, context.Canceled, errParent},
		"timed, with its parent":      {true, func(x subject) { x.parent(errParent) }, context.Canceled, errParent},
		"at its deadline":             {true, func(subject) { time.Sleep(time.Minute) }, context.DeadlineExceeded, errLate},
		"with a cause":                {false, func(x subject) { x.end(errEnded) }, context.Canceled, errEnded},
		"with its request":            {false, func(x subject) { x.finish() }, context.Canceled, context.Canceled},
		"timed, with its request":     {true, func(x subject) { x.finish() }, context.Canceled, context.Canceled},
		"with a cause, then finished": {false, func(x subject) { x.end(errEnded); x.finish() }, context.Canceled, errEnded},
		"finished, then with a cause": {false, func(x subject) { x.finish(); x.end(errEnded) }, context.Canceled, context.Canceled},
		"finished before its parent":  {false, func(x subject) { x.finish(); x.parent(errParent) }, context.Canceled, context.Canceled},
	} {
		for _, waited := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
				defer cancel(nil)
				x := subject{parent: cancel}
				if c.timed {
					x.Context, x.finish = acquire.Within(ctx, time.Minute, errLate)
				} else {
					x.Context, x.finish, x.end = acquire.Interruptible(ctx)
				}
				defer x.finish()
				if d, ok := x.Deadline(); ok != c.timed || ok && time.Until(d) != time.Minute {
					t.Errorf("%s: its deadline is in %s", name, time.Until(d))
				}
				same := []context.Context{x}
				if waited {
					child, stop := context.WithCancel(x)
					defer stop()
					same = append(same, child)
				}
				if err := errors.Join(x.Err(), acquire.CauseOf(x), context.Cause(x)); err != nil {
					t.Errorf("%s: before the end: %v", name, err)
				}
				c.end(x)
				synctest.Wait()
				check := func(one context.Context) {
					t.Helper()
					if cause := acquire.CauseOf(one); one.Err() != c.err || cause != c.cause { //nolint:errorlint // these and nothing around them
						t.Errorf("%s, waited %t: %v, cause %v; want %v, %v", name, waited, one.Err(), cause, c.err, c.cause)
					}
					select {
					case <-one.Done():
					default:
						t.Errorf("%s, waited %t: Done is not closed", name, waited)
					}
					if one.Value(key{}) != "value" {
						t.Errorf("%s, waited %t: it lost its values", name, waited)
					}
				}
				for _, one := range same {
					check(one)
				}
				late, stop := context.WithCancel(x)
				defer stop()
				check(late)
			})
		}
	}
}

// The deadline of the parent counts if it is sooner.
func TestRequestContextHasTheSoonerDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errParent)
		defer cancel()
		x, finish := acquire.Within(ctx, time.Minute, errLate)
		defer finish()
		if d, ok := x.Deadline(); !ok || time.Until(d) != time.Second {
			t.Errorf("its deadline is in %s", time.Until(d))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if err := acquire.CauseOf(x); !errors.Is(err, errParent) {
			t.Errorf("it ended with %v", err)
		}
	})
}
