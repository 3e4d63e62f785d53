package simulate

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// weather is a network with a fault for about every seventh request, and occasionally a storm in
// which nothing gets through.
type weather struct {
	backend.Backend
	mu    sync.Mutex
	rand  *rand.Rand
	storm time.Time // until when
	pace  int
	late  sync.WaitGroup
}

// lateMost is the maximum delay of a request whose connection broke.
const lateMost = 5 * time.Second

func (w *weather) draw() (int, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rand.IntN(300) == 0 {
		w.storm = time.Now().Add(time.Duration(w.pace*w.rand.IntN(30_000)) * time.Millisecond)
	}
	if time.Now().Before(w.storm) {
		return 1, 0
	}
	fate := w.rand.IntN(30)
	if fate > 5 && w.rand.IntN(4) > 0 {
		return fate, 0 // the machines are neighbours: most requests take no time to speak of
	}
	return fate, time.Duration(w.rand.ExpFloat64() * float64(2*time.Millisecond))
}

// pass carries one request and its answer.
func pass[T any](ctx context.Context, w *weather, call func(context.Context) (T, error)) (T, error) {
	var none T
	fate, delay := w.draw()
	if fate == 0 { // late both ways
		delay += time.Duration(delay.Nanoseconds()%3000) * time.Millisecond
	}
	if !Sleep(ctx, delay) {
		return none, context.Cause(ctx)
	}
	switch fate {
	case 1: // the request is lost without an error
		<-ctx.Done()
		return none, unavailable(true)
	case 2: // refused
		return none, unavailable(false)
	case 3: // the answer is lost without an error
		_, _ = call(ctx)
		<-ctx.Done()
		return none, unavailable(true)
	case 4: // the connection breaks after the request went through
		_, _ = call(ctx)
		return none, unavailable(true)
	case 5: // the connection breaks, and the request arrives later than those after it
		w.late.Go(func() {
			ghost, cancel := context.WithTimeout(context.WithoutCancel(ctx), lateMost)
			defer cancel()
			if Sleep(ghost, lateMost*time.Duration(1+delay.Nanoseconds()%10)/20) {
				_, _ = call(ghost)
			}
		})
		return none, unavailable(true)
	}
	answer, err := call(ctx)
	if !Sleep(ctx, delay) {
		return none, context.Cause(ctx)
	}
	return answer, err
}

// Sleep waits, and reports whether ctx has not ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

var errWire = errors.New("the wire was cut")

func unavailable(mayHold bool) error {
	return &backend.UnavailableError{Backend: "simulated", Op: "test", MayHold: mayHold, Err: errWire}
}

type nothing struct{}

func (w *weather) OpenSession(ctx context.Context, r backend.SessionRequest) error {
	_, err := pass(ctx, w, func(ctx context.Context) (nothing, error) { return nothing{}, w.Backend.OpenSession(ctx, r) })
	return err
}

func (w *weather) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	// An attempt is bounded, as a backend over a network bounds its requests.
	bound, cancel := context.WithTimeout(ctx, time.Duration(w.pace)*20*time.Second)
	defer cancel()
	g, err := pass(bound, w, func(ctx context.Context) (backend.Grant, error) { return w.Backend.Acquire(ctx, r) })
	if err != nil && bound.Err() != nil && ctx.Err() == nil {
		err = unavailable(true)
	}
	return g, err
}

func (w *weather) Renew(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
	return pass(ctx, w, func(ctx context.Context) (backend.RenewResult, error) { return w.Backend.Renew(ctx, r) })
}

func (w *weather) Release(ctx context.Context, r backend.ReleaseRequest) error {
	_, err := pass(ctx, w, func(ctx context.Context) (nothing, error) { return nothing{}, w.Backend.Release(ctx, r) })
	return err
}
