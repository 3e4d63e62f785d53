//go:build unix

package play

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/verify/history"
)

// heir requests each lock that a client held when it died. It is in the process of the run and
// has no faults, so nothing excuses a lock that it does not get.
type heir struct {
	*calm
	ctx   context.Context //nolint:containedctx // of its calls
	stop  context.CancelFunc
	once  sync.Once // of end
	calls sync.WaitGroup
	slots chan struct{} // concurrent calls; a request beyond them is dropped

	mu     sync.Mutex
	asked  map[callID]string   // the locks of acquires in progress
	estate map[string][]string // the locks that each client held
}

// callID identifies a call of a client.
type callID struct {
	worker string
	op     int64
}

const (
	heirName  = "heir.1"
	heirSlots = 256
)

func (r *run) newHeir(ctx context.Context) (*heir, error) {
	c, err := r.calm(heirName)
	if err != nil {
		return nil, err
	}
	h := &heir{calm: c, slots: make(chan struct{}, max(1, int(heirSlots*r.scale()))), asked: make(map[callID]string), estate: make(map[string][]string)}
	h.ctx, h.stop = context.WithCancel(context.WithoutCancel(ctx))
	return h, nil
}

// hear follows the clients that die, see [worker.mortal].
func (h *heir) hear(e history.Event) {
	dies, ends := strings.Contains(e.Worker, mortalMark), e.Kind == history.KindKill || e.Kind == history.KindEnd
	if !dies && !ends {
		return // nearly all events
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch id := (callID{e.Worker, e.Op}); {
	case h.ctx.Err() != nil: // see end
	case !dies:
		h.forget(e.Worker + mortalMark)
	case e.Kind == history.KindCall && (e.Verb == history.VerbAcquire || e.Verb == history.VerbTry):
		h.asked[id] = e.Lock
	case e.Kind == history.KindReturn:
		if lock, ok := h.asked[id]; ok && e.Outcome == history.OK {
			h.estate[e.Worker] = append(h.estate[e.Worker], lock)
		}
		delete(h.asked, id)
	case e.Kind == history.KindKill:
		for _, lock := range h.estate[e.Worker] {
			h.inherit(lock)
		}
		h.forget(e.Worker)
	}
}

// forget drops the records of the clients whose names begin with clients. h.mu is locked.
func (h *heir) forget(clients string) {
	for id := range h.asked {
		if strings.HasPrefix(id.worker, clients) {
			delete(h.asked, id)
		}
	}
	for worker := range h.estate {
		if strings.HasPrefix(worker, clients) {
			delete(h.estate, worker)
		}
	}
}

// inherit requests a lock in another goroutine. h.mu is locked.
func (h *heir) inherit(lock string) {
	select {
	case h.slots <- struct{}{}:
	default:
		return
	}
	h.calls.Go(func() {
		defer func() { <-h.slots }()
		ctx, cancel := context.WithTimeout(h.ctx, h.patience())
		defer cancel()
		if give, err := h.take(ctx, history.VerbAcquire, lock); err == nil {
			give()
		}
	})
}

// end cancels the pending requests. It may be called twice.
func (h *heir) end(ctx context.Context) error {
	var err error
	h.once.Do(func() {
		h.mu.Lock()
		h.stop() // hear begins no more calls
		h.mu.Unlock()
		h.calls.Wait()
		err = h.calm.end(ctx)
	})
	return err
}

// patience is how long a task waits for a lock, unless it is to give up early.
func (r *run) patience() time.Duration { return 2*r.slack() + 6*time.Second }
