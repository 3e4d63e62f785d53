package acquire

import (
	"sync"
	"sync/atomic"
)

// tally counts the work in progress. Unlike a sync.WaitGroup it may count up from zero while others wait
// for zero.
type tally struct {
	n    atomic.Int64
	mu   sync.Mutex                    // held to change idle
	idle atomic.Pointer[chan struct{}] // closed when n is 0; nil when no caller waits for that
}

func (t *tally) add() { t.n.Add(1) }

func (t *tally) done() {
	if t.n.Add(-1) == 0 && t.idle.Load() != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.closeIfIdle()
	}
}

// closeIfIdle notifies the callers that wait for zero, if it is reached. mu is held.
func (t *tally) closeIfIdle() {
	if idle := t.idle.Load(); idle != nil && t.isIdle() {
		close(*idle)
		t.idle.Store(nil)
	}
}

// run counts f, and runs it in a goroutine.
func (t *tally) run(f func()) {
	t.add()
	go func() {
		defer t.done()
		f()
	}()
}

// whenIdle returns a channel that is closed when nothing is in progress.
func (t *tally) whenIdle() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	idle := t.idle.Load()
	if idle == nil {
		made := make(chan struct{})
		idle = &made
		t.idle.Store(idle) // before n is read: a done that reads nil comes before that
	}
	t.closeIfIdle()
	return *idle
}

func (t *tally) isIdle() bool { return t.n.Load() == 0 }
