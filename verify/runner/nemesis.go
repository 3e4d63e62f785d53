//go:build unix

package runner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/verify/history"
)

// runNemesis executes the plan, with the faults of the workers beside those of the servers. When it
// returns, all faults are healed.
func (r *run) runNemesis(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.For)
	defer cancel()
	var servers, workers []planned
	for _, f := range plan(r.cfg.Seed, r.cfg.Profile, r.able, r.ttl, r.cfg.For) {
		if f.fault.ofServers() {
			f.worker = r.measure.workers // the index of the servers
			servers = append(servers, f)
		} else {
			workers = append(workers, f)
		}
	}
	begun := time.Now()
	var under sync.WaitGroup
	defer under.Wait()
	under.Go(func() { r.injectPlan(ctx, begun, servers, &under) })
	r.injectPlan(ctx, begun, workers, &under)
	<-ctx.Done()
}

// injectPlan begins faults when their times come, or when there is a target without a fault: each
// target has one fault at a time.
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
			if p == nil {
				r.injectOnServers(ctx, f)
				return
			}
			r.injectOnWorker(ctx, p, f)
		})
	}
}

// reserveTarget reserves a worker for a fault, or another worker if that one has a fault already, or
// the servers, for which there is no worker. It returns the target, and reports false when none
// is free.
func (r *run) reserveTarget(n int) (*workerHandle, int, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := len(r.workers)
	if n == all {
		free := !r.busy[n]
		r.busy[n] = true
		return nil, n, free
	}
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
	for _, busy := range r.busy[:len(r.workers)] {
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

// injectOnServers stops or crashes one server, or all in turn, slows disks, or sets a clock. The
// event is for all workers. It ends when the servers serve again, which can take an election.
func (r *run) injectOnServers(ctx context.Context, f planned) {
	targets := r.servers.victims(f)
	if len(targets) == 0 {
		return
	}
	text := string(f.fault)
	if len(targets) == 1 {
		text = fmt.Sprintf("%s, %d", f.fault, slices.Index(r.servers.members, targets[0])+1)
	}
	r.tell(history.Event{Kind: history.KindFault, Text: text})
	var err error
	switch f.fault { //nolint:exhaustive // the others are not of servers
	case faultServerStop:
		err = targets[0].Process().Stop()
		retry.Pause(ctx, f.lasts)
		err = errors.Join(err, targets[0].Process().Cont())
	case faultServerCrash:
		err = targets[0].powerFailure(ctx)
		retry.Pause(ctx, r.ttl/4)
		if err == nil {
			err = targets[0].revive(context.WithoutCancel(ctx))
		}
	case faultServersTurn:
		err = stopInTurn(ctx, targets, f)
	case faultSlowDisk:
		slowDisks(ctx, targets, f)
	case faultClock:
		err = r.jump(ctx, targets[0], f)
	}
	err = errors.Join(err, r.servers.shims.failure())
	for _, m := range targets {
		if err == nil {
			err = m.ready(context.WithoutCancel(ctx))
		}
	}
	if err != nil {
		r.fail(err)
	}
	if f.fault == faultServerCrash {
		retry.Pause(context.WithoutCancel(ctx), targets[0].trace)
	}
	r.tell(history.Event{Kind: history.KindHeal, Text: text})
}

// stopInTurn stops one server after the other, and continues them in another order: for a while
// clients reach only a minority, then no server.
func stopInTurn(ctx context.Context, members []*member, f planned) error {
	var err error
	chance := rand.New(rand.NewPCG(uint64(f.at), uint64(f.lasts))) //nolint:gosec // both are above 0; and it is a plan
	step := f.lasts / time.Duration(len(members))
	for _, i := range chance.Perm(len(members)) {
		err = errors.Join(err, members[i].Process().Stop())
		retry.Pause(ctx, step)
	}
	for _, i := range chance.Perm(len(members)) {
		err = errors.Join(err, members[i].Process().Cont())
		retry.Pause(ctx, step)
	}
	return err
}
