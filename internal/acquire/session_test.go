package acquire_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/acquire"
)

type silent struct{}

func (silent) Renewed(int, time.Duration, time.Duration, error) {}
func (silent) AtRisk(int, time.Duration, error)                 {}
func (silent) Ambiguous(context.Context, string)                {}

// slowToOpen opens sessions, and answers when the gate is open.
type slowToOpen struct {
	backend.Backend
	gate, reached chan struct{}
	opened, ended atomic.Int64
}

func (b *slowToOpen) OpenSession(ctx context.Context, r backend.SessionRequest) error {
	err := b.Backend.OpenSession(ctx, r)
	b.opened.Add(1)
	b.reached <- struct{}{}
	<-b.gate
	return err
}

func (b *slowToOpen) EndSession(ctx context.Context, id backend.SessionID) error {
	b.ended.Add(1)
	return b.Backend.EndSession(ctx, id)
}

// C13: a session that is being opened when it is ended is ended on the backend. The mutex of the agent is
// busy, as with many waiting requests, so that the answer to OpenSession comes at any point of End.
func TestEndWhileOpening(t *testing.T) {
	t.Parallel()
	b := &slowToOpen{Backend: memlock.New(), reached: make(chan struct{})}
	defer b.Close()
	a := acquire.New(acquire.Config{Backend: b, TTL: time.Hour, Timeout: 10 * time.Second, Logger: slog.New(slog.DiscardHandler), Observer: silent{}})
	over := make(chan struct{})
	var busy sync.WaitGroup
	for range 4 {
		busy.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					a.Mu.Lock()
					time.Sleep(time.Millisecond / 2)
					a.Mu.Unlock()
				}
			}
		})
	}
	for range 100 {
		b.gate = make(chan struct{})
		s := a.NewSession()
		ctx, cancel := context.WithCancel(t.Context())
		var work sync.WaitGroup
		work.Go(func() { _, _ = s.Live(ctx) })
		<-b.reached
		work.Go(func() { close(b.gate) })
		cancel()
		if err := s.End(t.Context()); err != nil {
			t.Fatal(err)
		}
		work.Wait()
	}
	close(over)
	busy.Wait()
	if opened, ended := b.opened.Load(), b.ended.Load(); opened != ended {
		t.Errorf("%d sessions were opened, and %d ended", opened, ended)
	}
	if err := a.Close(t.Context(), a.NewSession(), func() []backend.ReleaseRequest { return nil }); err != nil {
		t.Error(err)
	}
}
