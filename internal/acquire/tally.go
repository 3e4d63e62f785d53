package acquire

import "sync"

// tally counts the work in progress. Unlike a sync.WaitGroup it may count up from zero while others wait
// for zero.
type tally struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n becomes 0; nil when no caller waits for that
}

func (t *tally) add() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
}

func (t *tally) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
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
	if t.idle == nil {
		t.idle = make(chan struct{})
	}
	idle := t.idle
	if t.n == 0 {
		close(t.idle)
		t.idle = nil
	}
	return idle
}

func (t *tally) isIdle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n == 0
}
