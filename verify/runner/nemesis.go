//go:build unix

package runner

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/verify/history"
)

// runNemesis executes the plan. When it returns, all faults are healed.
func (r *run) runNemesis(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.For)
	defer cancel()
	var under sync.WaitGroup
	defer under.Wait()
	if r.cfg.disturb != nil {
		under.Go(func() { r.cfg.disturb(ctx, r) })
	}
	r.injectPlan(ctx, time.Now(), plan(r.cfg.Seed, r.cfg.Profile, r.able, r.ttl, r.cfg.For), &under)
	<-ctx.Done()
}

// injectPlan begins faults when their times come, or when there is a worker without a fault: each has
// one fault at a time.
func (r *run) injectPlan(ctx context.Context, begun time.Time, faults []planned, under *sync.WaitGroup) {
	const pollInterval = 10 * time.Millisecond
	for _, f := range faults {
		if !retry.Pause(ctx, time.Until(begun.Add(f.at))) {
			return
		}
		p, whom, free := r.reserveTarget(f.worker)
		for ; !free; p, whom, free = r.reserveTarget(f.worker) {
			if !retry.Pause(ctx, pollInterval) {
				return
			}
		}
		if r.failed() != nil {
			r.releaseTarget(whom)
			return
		}
		f.worker = whom
		under.Go(func() {
			defer r.releaseTarget(f.worker)
			r.injectOnWorker(ctx, p, f)
		})
	}
}

// reserveTarget reserves a worker for a fault, or another worker if that one has a fault already. It
// reports false when none is free.
func (r *run) reserveTarget(n int) (*workerHandle, int, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.countFaulty() >= r.measure.maxFaulty {
		return nil, n, false
	}
	exposed := r.measure.exposed()
	for i := range exposed {
		if k := (n + i) % exposed; !r.busy[k] {
			r.busy[k] = true
			return r.workers[k], k, true
		}
	}
	return nil, n, false
}

// countFaulty returns how many workers have a fault. r.mu is locked.
func (r *run) countFaulty() int {
	n := 0
	for _, busy := range r.busy {
		if busy {
			n++
		}
	}
	return n
}

func (r *run) releaseTarget(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy[n] = false
}

// injectOnWorker injects one fault and heals it after its time, or when ctx ends. A fault that must
// not be healed before its time is left out if ctx ends before that.
func (r *run) injectOnWorker(ctx context.Context, p *workerHandle, f planned) {
	select {
	case <-p.done: // the worker ended by itself
		r.fail(fmt.Errorf("verify: worker %s ended by itself: %w", p.id, p.err))
		return
	default:
	}
	if f.keep {
		lead := r.ttl / 4 //nolint:mnd // some locks are held by then
		p.send(order{Keep: lead + f.lasts})
		if !retry.Pause(ctx, lead) {
			return
		}
	}
	if end, ok := ctx.Deadline(); ok && r.able.breaks(f.fault) && time.Until(end) < f.lasts {
		return
	}
	switch f.fault { //nolint:exhaustive // the others are of the network
	case faultKill:
		r.kill(p)
		if r.able.relay {
			// Requests on their way end with it: the faults of the next life must not hold a
			// request of this one, and deliver it after everything that it could affect is
			// forgotten.
			for _, relay := range r.relays[f.worker] {
				relay.Reset()
			}
		}
		retry.Pause(ctx, r.ttl/4)
		if err := r.start(ctx, f.worker); err != nil {
			r.fail(err)
		}
		return
	case faultFreeze:
		r.tell(history.Event{Kind: history.KindFreeze, Worker: p.id})
		p.signal(syscall.SIGSTOP)
		retry.Pause(ctx, f.lasts)
		r.tell(history.Event{Kind: history.KindThaw, Worker: p.id})
		p.signal(syscall.SIGCONT)
		return
	}
	r.tell(history.Event{Kind: history.KindFault, Worker: p.id, Text: string(f.fault)})
	if r.able.link {
		injectOnLink(ctx, p.link, f)
	} else {
		injectOnRelays(ctx, r.relays[f.worker], f)
	}
	r.tell(history.Event{Kind: history.KindHeal, Worker: p.id, Text: string(f.fault)})
}

func injectOnRelays(ctx context.Context, relays []*chaos.Proxy, f planned) {
	for _, p := range relays {
		switch f.fault { //nolint:exhaustive // the others are of processes
		case faultDelay:
			p.Delay(chaos.Both, f.lasts/20, f.lasts/20)
		case faultHold:
			p.Hold(chaos.Both)
		case faultHoldReplies:
			p.Hold(chaos.Replies)
		case faultCut:
			p.BlackHole()
		case faultCutReplies:
			p.Cut(chaos.Replies)
		case faultReset:
			p.Reset()
		case faultRefuse:
			p.Refuse()
			p.Reset()
		case faultHalfServer:
			p.DropServerHalf()
		case faultHalfClient:
			p.DropClientHalf()
		case faultLoseReply:
			p.LoseReply(nil)
		}
	}
	retry.Pause(ctx, f.lasts)
	for _, p := range relays {
		p.Heal()
	}
}

func injectOnLink(ctx context.Context, l *link, f planned) {
	switch f.fault { //nolint:exhaustive // the others are not of links
	case faultDelay:
		l.slow(f.lasts / 20)
	case faultHold:
		l.hold(true, true)
	case faultHoldReplies:
		l.hold(false, true)
	case faultCut:
		l.hold(true, true)
		l.lose()
	}
	retry.Pause(ctx, f.lasts)
	if f.fault == faultCut {
		l.lose()
	}
	l.heal()
}
