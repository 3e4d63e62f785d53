//go:build unix

package runner

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
)

// standing answers nothing for a while, from the first call of its kind on.
type standing struct {
	backend.Backend
	from  string // a release, or the end of a session
	lasts time.Duration
	mu    sync.Mutex
	until time.Time
}

// stand waits until the backend answers again.
func (s *standing) stand(ctx context.Context, kind string) error {
	s.mu.Lock()
	if s.until.IsZero() && kind == s.from {
		s.until = time.Now().Add(s.lasts)
	}
	left := time.Until(s.until)
	s.mu.Unlock()
	select {
	case <-time.After(left):
		return nil
	case <-ctx.Done():
		return &backend.UnavailableError{Backend: "memory", Op: kind, MayHold: true, Err: context.Cause(ctx)}
	}
}

func (s *standing) Release(ctx context.Context, r backend.ReleaseRequest) error {
	if err := s.stand(ctx, "release"); err != nil {
		return err
	}
	return s.Backend.Release(ctx, r)
}

func (s *standing) Renew(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
	if err := s.stand(ctx, "renew"); err != nil {
		return backend.RenewResult{}, err
	}
	return s.Backend.Renew(ctx, r)
}

func (s *standing) EndSession(ctx context.Context, id backend.SessionID) error {
	if err := s.stand(ctx, "end session"); err != nil {
		return err
	}
	return s.Backend.EndSession(ctx, id)
}

// A backend that does not answer for longer than the TTL, before the run has begun, does not end it.
func TestStandstillBeforeTheRun(t *testing.T) {
	t.Parallel()
	for _, from := range []string{"release", "end session"} {
		t.Run(from, func(t *testing.T) {
			t.Parallel()
			const ttl = time.Second
			b := &standing{Backend: memlock.New(), from: from, lasts: 3 * ttl}
			t.Cleanup(func() { _ = b.Close() })
			r := &run{cfg: Config{Log: func(string) {}}, caps: b.Capabilities(), ttl: ttl, direct: b, prefix: "p"}
			if err := r.warm(t.Context()); err != nil || r.took <= 0 {
				t.Errorf("%v, a lock takes %s", err, r.took)
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.until.IsZero() {
				t.Error("it did not stand still: nothing is tested")
			}
		})
	}
}

// An attempt is repeated as long as the machine may have stood still, and no other.
func TestAgain(t *testing.T) {
	t.Parallel()
	away := &backend.UnavailableError{Backend: "memory", Op: "open", Err: errors.New("no answer")}
	refused := &backend.UnavailableError{Backend: "memory", Op: "open", Err: &backend.RefusedError{}}
	for name, c := range map[string]struct {
		err   error
		takes time.Duration
		times int
	}{
		"at once":   {away, 0, 1},
		"slow":      {away, 2 * standstill, 4},
		"refused":   {refused, 2 * standstill, 1},
		"a finding": {backend.ErrInvalid, 2 * standstill, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 7*standstill)
				defer cancel()
				times := 0
				err := again(ctx, standstill, func() error {
					times++
					time.Sleep(c.takes)
					return c.err
				})
				if !errors.Is(err, c.err) || times != c.times {
					t.Errorf("%v after %d times; want %v after %d", err, times, c.err, c.times)
				}
			})
		})
	}
}
