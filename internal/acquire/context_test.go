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
	for name, end := range map[string]struct {
		do         func(cancel context.CancelCauseFunc, finish func(), end func(error))
		err, cause error
	}{
		"with its parent":   {func(cancel context.CancelCauseFunc, _ func(), _ func(error)) { cancel(errParent) }, context.Canceled, errParent},
		"at its deadline":   {func(context.CancelCauseFunc, func(), func(error)) { time.Sleep(time.Minute) }, context.DeadlineExceeded, errLate},
		"with a cause":      {func(_ context.CancelCauseFunc, _ func(), end func(error)) { end(errEnded) }, context.Canceled, errEnded},
		"with its request":  {func(_ context.CancelCauseFunc, finish func(), _ func(error)) { finish() }, context.Canceled, context.Canceled},
		"once for all":      {func(_ context.CancelCauseFunc, finish func(), end func(error)) { end(errEnded); finish() }, context.Canceled, errEnded},
		"before its parent": {func(c context.CancelCauseFunc, finish func(), _ func(error)) { finish(); c(errParent) }, context.Canceled, context.Canceled},
	} {
		for _, waited := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
				defer cancel(nil)
				x, finish, endWith := acquire.Within(ctx, time.Minute, errLate)
				defer finish()
				if d, ok := x.Deadline(); !ok || time.Until(d) != time.Minute {
					t.Errorf("%s: its deadline is in %s", name, time.Until(d))
				}
				var child context.Context
				if waited {
					var stop context.CancelFunc
					child, stop = context.WithCancel(x)
					defer stop()
				}
				if err := errors.Join(x.Err(), acquire.CauseOf(x), context.Cause(x)); err != nil {
					t.Errorf("%s: before the end: %v", name, err)
				}
				end.do(cancel, finish, endWith)
				synctest.Wait()
				for _, c := range []context.Context{child, x} {
					if c == nil {
						continue
					}
					if cause := acquire.CauseOf(c); c.Err() != end.err || cause != end.cause { //nolint:errorlint // these and nothing around them
						t.Errorf("%s, waited %t: %v, cause %v; want %v, %v", name, waited, c.Err(), cause, end.err, end.cause)
					}
					select {
					case <-c.Done():
					default:
						t.Errorf("%s, waited %t: Done is not closed", name, waited)
					}
					if c.Value(key{}) != "value" {
						t.Errorf("%s, waited %t: it lost its values", name, waited)
					}
				}
				late, stop := context.WithCancel(x)
				defer stop()
				if late.Err() == nil {
					t.Errorf("%s, waited %t: a child made after the end has not ended", name, waited)
				}
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
		x, finish, _ := acquire.Within(ctx, time.Minute, errLate)
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
