package connlease_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connlease"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/testkit/simulate"
)

// value is a backend on the server in memory.
type value struct{ *connlease.Leases }

func (value) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Name: "server", Sessions: true, Bound: true, Tied: true, Shared: true, Push: true, LossPush: true, MinTTL: time.Second, MaxTTL: 24 * time.Hour,
		ExpiryLag: 2 * time.Second, TokenKind: "counter",
	}
}

func (v value) Close() error {
	v.Leases.Close()
	return nil
}

// wires is the way of one value to the server. Faults come from rand; nil: there are none.
type wires struct {
	*server

	turn sync.Mutex // for rand
	rand *rand.Rand
}

func (w *wires) intN(n int) int {
	if w.rand == nil {
		return n - 1
	}
	w.turn.Lock()
	defer w.turn.Unlock()
	return w.rand.IntN(n)
}

// wire is a connection over it. The server ends it when nothing arrived for as long as the client said.
type wire struct {
	*link

	w      *wires
	idle   *time.Timer
	broken chan struct{} // closed when the client can tell
	breaks sync.Once
}

const idleMargin = 500 * time.Millisecond

func (w *wires) Connect(ctx context.Context, id backend.SessionID, ttl time.Duration, hear func(connlease.Note)) (connlease.Conn, error) {
	if w.intN(20) == 0 {
		return nil, errGone
	}
	c, err := w.server.Connect(ctx, id, ttl, hear)
	if err != nil {
		return nil, err
	}
	l := &wire{link: c.(*link), w: w, broken: make(chan struct{})}
	l.idle = time.AfterFunc(ttl+idleMargin, func() { w.kill(l.id) })
	if w.rand != nil {
		go func() {
			select {
			case <-time.After(time.Duration(1+w.intN(600)) * time.Second):
				l.part()
			case <-l.cut:
			}
		}()
	}
	return l, nil
}

func (l *wire) part() { l.breaks.Do(func() { close(l.broken) }) }

func (l *wire) Wait(ctx context.Context) error {
	select {
	case <-l.broken:
		return errGone
	default:
	}
	select {
	case <-l.heard:
		l.deliver()
	case <-ctx.Done():
	case <-l.cut:
		return errGone
	case <-l.broken:
		return errGone
	}
	return nil
}

// Close ends the connection, and the server may notice.
func (l *wire) Close() {
	if l.w.intN(2) > 0 {
		l.w.kill(l.id)
	}
	l.part()
}

func (l *wire) Do(ctx context.Context, w *connlease.Work) error {
	select {
	case <-l.broken:
		return errGone
	case <-l.cut:
		return errGone
	default:
	}
	switch l.w.intN(200) {
	case 0: // it is swallowed
		return l.silence(ctx)
	case 1: // it does not arrive
		return errGone
	case 2: // the answer is lost
		_ = l.arrive(w)
		return errGone
	case 3: // the answer is swallowed
		_ = l.arrive(w)
		return l.silence(ctx)
	case 4: // it arrives late, for nobody
		late := *w
		late.Try = nil
		for _, t := range w.Try {
			x := *t
			late.Try = append(late.Try, &x)
		}
		go func() {
			time.Sleep(time.Duration(l.w.intN(3000)) * time.Millisecond)
			_ = l.arrive(&late)
		}()
		return errGone
	case 5: // the process sleeps
		err := l.arrive(w)
		select {
		case <-time.After(time.Duration(l.w.intN(30_000)) * time.Millisecond):
			return err
		case <-l.cut:
			return errGone
		}
	case 6: // new locks are refused
		if len(w.Try) > 0 && !w.End {
			w.WithoutTry(errors.New("refused"))
		}
	}
	err := l.arrive(w)
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return err
}

// silence waits until the client gives up, or sees that the server has ended the connection: until then it may consider held
// what was lost.
func (l *wire) silence(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-l.cut:
		return errGone
	}
}

func (l *wire) arrive(w *connlease.Work) error {
	l.w.mu.Lock()
	alive := l.w.conns[l.id] != nil
	if alive {
		l.idle.Reset(w.Left + idleMargin)
	}
	l.w.mu.Unlock()
	return l.link.Do(context.Background(), w)
}

func TestSimulation(t *testing.T) {
	t.Parallel()
	simulate.Hours(t, func(seed uint64) func() backend.Backend {
		s, opened := newServer(), uint64(0)
		t.Cleanup(func() {
			for _, wrong := range s.wrong {
				t.Errorf("seed %d: %s", seed, wrong)
			}
		})
		return func() backend.Backend {
			opened++
			w := &wires{server: s}
			if opened > 1 {
				w.rand = rand.New(rand.NewPCG(seed, opened))
			}
			return value{connlease.New(connlease.Config{Store: w, Rest: retry.Rest{Least: time.Second, Longest: time.Second}, Caps: value{}.Capabilities()})}
		}
	})
}
