package holdfast_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
)

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
