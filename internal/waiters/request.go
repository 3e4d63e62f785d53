package waiters

import (
	"context"
	"sync/atomic"

	"github.com/holdfast-io/holdfast/backend"
)

// Request is a request of a caller, which a batch of requests takes. Init makes it ready.
type Request struct {
	Op    string
	taken atomic.Bool // by a batch, or by its caller, who withdrew it
	gone  atomic.Bool
	done  chan struct{} // closed when err is set
	err   error
}

// Init makes the request ready to be queued.
func (r *Request) Init() { r.done = make(chan struct{}) }

// Wanted reports whether a caller still waits for the answer.
func (r *Request) Wanted() bool { return !r.gone.Load() }

// Take reports whether a batch may execute the request: it was not withdrawn.
func (r *Request) Take() bool { return r.taken.CompareAndSwap(false, true) }

// Answer answers the request. It is called once.
func (r *Request) Answer(err error) {
	r.err = err
	close(r.done)
}

// Err returns the answer of a request that was answered.
func (r *Request) Err() error { return r.err }

// Wait returns the answer. When ctx or life ends first, the request is withdrawn. Wait returns ErrClosed if life has
// ended, and else what unavailable makes of ctx's cause; mayHold is set if a batch has taken the request.
func (r *Request) Wait(ctx, life context.Context, unavailable func(op string, mayHold bool, err error) error) error {
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
	case <-life.Done():
	}
	mayHold := !r.withdraw()
	select {
	case <-r.done:
		return r.err
	default:
	}
	if life.Err() != nil {
		return backend.ErrClosed
	}
	return unavailable(r.Op, mayHold, context.Cause(ctx))
}

// withdraw reports whether no batch has taken the request, and none will.
func (r *Request) withdraw() bool {
	r.gone.Store(true)
	return r.Take()
}

// Signal signals the goroutine at the other end of a channel of capacity 1, unless it has been signalled.
func Signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
