package backend_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

func TestErrorKinds(t *testing.T) {
	t.Parallel()
	cause := context.DeadlineExceeded
	for _, x := range []struct {
		err  error
		is   []error
		text string
	}{
		{&backend.HeldError{Name: "a"}, []error{backend.ErrHeld}, `lock "a" is held`},
		{
			&backend.HeldError{Name: "a", Ahead: 2, Holders: []backend.Holder{
				{Owner: "w7", Note: "deploy 42", Token: 9, Since: time.Unix(1, 0), Left: 1500 * time.Millisecond}, {Token: 10},
			}},
			[]error{backend.ErrHeld},
			`lock "a" is held by "w7" since 1970-01-01T00:00:01Z, token 9, and lapses in 1.5s unless renewed, and by 1 more; 2 ahead in the queue`,
		},
		{&backend.InvalidError{Field: "ttl", Value: "1ns", Bound: "1s to 1h"}, []error{backend.ErrInvalid}, "ttl 1ns: must be 1s to 1h"},
		{
			&backend.LimitError{Name: "a", Asked: 2, InForce: 0},
			[]error{backend.ErrLimit, backend.ErrInvalid},
			`limit 2 of lock "a": must be none, which is in force`,
		},
		{
			&backend.UnavailableError{Backend: "redis", Op: "acquire", MayHold: true, RetryAfter: 2 * time.Second, Err: cause},
			[]error{backend.ErrUnavailable, cause},
			"redis: acquire: backend is unavailable: context deadline exceeded (again in 2s) (it may have worked)",
		},
		{&backend.UnavailableError{Backend: "redis", Op: "list"}, []error{backend.ErrUnavailable}, "redis: list: backend is unavailable"},
	} {
		if got := x.err.Error(); got != x.text {
			t.Errorf("got  %s\nwant %s", got, x.text)
		}
		for _, kind := range x.is {
			if !errors.Is(x.err, kind) {
				t.Errorf("%v is not %v", x.err, kind)
			}
		}
	}
}
