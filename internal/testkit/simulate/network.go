package simulate

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// What happens to a request that gets no answer. With ErrCut and ErrEnds it is not known whether it was executed; with
// ErrEnds it is not on its way any more.
var (
	ErrRefused = errors.New("the server refused")
	ErrUnsent  = errors.New("the request did not leave")
	ErrEnds    = errors.New("the server ends the connection")
	ErrCut     = errors.New("the connection was cut")
)

// Network is the way of one value to its store in memory. Its methods are safe for concurrent use.
type Network struct {
	mu   sync.Mutex // guards rand
	rand *rand.Rand
}

// NewNetwork returns a network that delays, and has a fault for every twelfth request. faults may be nil: then it does neither.
func NewNetwork(faults *rand.Rand) *Network { return &Network{rand: faults} }

// Fate is what happens to a request.
type Fate struct {
	Delay time.Duration // of the request, and of its answer
	Err   error         // nil: it is answered
	Done  bool          // it is executed before Err is returned
	Late  bool          // it is executed afterwards
}

// Draw returns the fate of the next request.
func (n *Network) Draw() Fate {
	if n.rand == nil {
		return Fate{}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	f := Fate{Delay: time.Duration(n.rand.ExpFloat64() * float64(time.Millisecond))}
	switch n.rand.IntN(60) {
	case 0:
		f.Delay += time.Duration(n.rand.IntN(3000)) * time.Millisecond
	case 1:
		f.Err = ErrUnsent
	case 2:
		f.Err = ErrRefused
	case 3:
		f.Err, f.Done = ErrCut, true
	case 4:
		f.Err, f.Late = ErrCut, true
	case 5:
		f.Err, f.Done = ErrEnds, n.rand.IntN(2) == 0
	}
	return f
}

// Pass carries a request and its answer. It reports whether the request was executed, or will be.
func (f Fate) Pass(ctx context.Context, do func(context.Context) error) (bool, error) {
	if !Sleep(ctx, f.Delay) {
		return false, ErrCut
	}
	switch {
	case f.Late:
		go func() {
			late := context.WithoutCancel(ctx)
			Sleep(late, min(1000*f.Delay, time.Second))
			_ = do(late)
		}()
	case f.Err == nil, f.Done:
		if err := do(ctx); err != nil {
			return true, err
		}
		if !Sleep(ctx, f.Delay) {
			return true, ErrCut
		}
	}
	return f.Late || f.Done || f.Err == nil, f.Err
}

// Ask carries a request and its answer. The answer to a request that is late goes nowhere; only one that writes is late.
func Ask[T any](ctx context.Context, n *Network, writes bool, do func(context.Context) (T, error)) (T, error) {
	answer := make(chan T, 1)
	f := n.Draw()
	f.Late = f.Late && writes
	if _, err := f.Pass(ctx, func(ctx context.Context) error {
		x, err := do(ctx)
		answer <- x
		return err
	}); err != nil {
		var none T
		return none, err
	}
	return <-answer, nil
}
