//go:build unix

package runner

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/verify/history"
)

// deadLockProbe requests each lock that a client held when it died. It is in the process of the
// run and has no faults, so nothing excuses a lock that it does not get.
type deadLockProbe struct {
	*controlClient
	ctx   context.Context //nolint:containedctx // of its calls
	stop  context.CancelFunc
	once  sync.Once // of end
	calls sync.WaitGroup
	slots chan struct{} // concurrent calls; a request beyond them is dropped

	mu    sync.Mutex
	asked map[callID]string   // the locks of acquires in progress
	held  map[string][]string // the locks that each client held
}

// callID identifies a call of a client.
type callID struct {
	worker string
	op     int64
}

const (
	probeName  = "heir.1"
	probeSlots = 256
)

func (r *run) newDeadLockProbe(ctx context.Context) (*deadLockProbe, error) {
	c, err := r.newControlClient(probeName)
	if err != nil {
		return nil, err
	}
	p := &deadLockProbe{controlClient: c, slots: make(chan struct{}, max(1, int(probeSlots*r.scale()))), asked: make(map[callID]string), held: make(map[string][]string)}
	p.ctx, p.stop = context.WithCancel(context.WithoutCancel(ctx))
	return p, nil
}

// observe follows the clients that die, see [worker.runDyingClient].
func (p *deadLockProbe) observe(e history.Event) {
	dies, ends := strings.Contains(e.Worker, dyingMark), e.Kind == history.KindKill || e.Kind == history.KindEnd
	if !dies && !ends {
		return // nearly all events
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch id := (callID{e.Worker, e.Op}); {
	case p.ctx.Err() != nil: // see end
	case !dies:
		p.forgetClients(e.Worker + dyingMark)
	case e.Kind == history.KindCall && (e.Verb == history.VerbAcquire || e.Verb == history.VerbTry):
		p.asked[id] = e.Lock
	case e.Kind == history.KindReturn:
		if lock, ok := p.asked[id]; ok && e.Outcome == history.OK {
			p.held[e.Worker] = append(p.held[e.Worker], lock)
		}
		delete(p.asked, id)
	case e.Kind == history.KindKill:
		for _, lock := range p.held[e.Worker] {
			p.probeLock(lock)
		}
		p.forgetClients(e.Worker)
	}
}

// forgetClients drops the records of the clients whose names begin with clients. p.mu is locked.
func (p *deadLockProbe) forgetClients(clients string) {
	for id := range p.asked {
		if strings.HasPrefix(id.worker, clients) {
			delete(p.asked, id)
		}
	}
	for worker := range p.held {
		if strings.HasPrefix(worker, clients) {
			delete(p.held, worker)
		}
	}
}

// probeLock requests a lock in another goroutine. p.mu is locked.
func (p *deadLockProbe) probeLock(lock string) {
	select {
	case p.slots <- struct{}{}:
	default:
		return
	}
	p.calls.Go(func() {
		defer func() { <-p.slots }()
		ctx, cancel := context.WithTimeout(p.ctx, p.patience())
		defer cancel()
		if give, err := p.take(ctx, history.VerbAcquire, lock); err == nil {
			give()
		}
	})
}

// end cancels the pending requests. It may be called twice.
func (p *deadLockProbe) end(ctx context.Context) error {
	var err error
	p.once.Do(func() {
		p.mu.Lock()
		p.stop() // observe begins no more calls
		p.mu.Unlock()
		p.calls.Wait()
		err = p.controlClient.end(ctx)
	})
	return err
}

// patience is how long a task waits for a lock, unless it is to give up early.
func (r *run) patience() time.Duration { return 2*r.slack() + 6*time.Second }
