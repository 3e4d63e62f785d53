//go:build unix

package play

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/verify/history"
)

// hurt goes through the plan. When it returns, all is healed.
func (r *run) hurt(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.For)
	defer cancel()
	begun := time.Now()
	var under sync.WaitGroup
	defer under.Wait()
	for _, f := range plan(r.cfg.Seed, r.cfg.Profile, r.able, r.ttl, r.cfg.For) {
		if !pause(ctx, time.Until(begun.Add(f.at))) || r.failed() != nil {
			break
		}
		if f.fault == faultServerStop || f.fault == faultServerCrash {
			f.worker = r.measure.workers // the place of the servers
		}
		p, free := r.occupy(f.worker)
		if !free {
			continue // one fault at a time for each
		}
		under.Go(func() {
			defer r.vacate(f.worker)
			if p == nil {
				r.hurtServer(ctx, f)
				return
			}
			r.inflict(ctx, p, f)
		})
	}
	<-ctx.Done()
}

// occupy reserves a worker for a fault, or the servers, where there is no player. It
// reports false when there is a fault already.
func (r *run) occupy(n int) (*player, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[n] {
		return nil, false
	}
	r.busy[n] = true
	if n == len(r.players) {
		return nil, true
	}
	return r.players[n], true
}

func (r *run) vacate(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy[n] = false
}

// inflict does one fault and heals it after its time, or when ctx ends.
func (r *run) inflict(ctx context.Context, p *player, f planned) {
	select {
	case <-p.done: // ended by itself
		r.fail(fmt.Errorf("verify: worker %s ended by itself: %w", p.id, p.err))
		return
	default:
	}
	switch f.fault { //nolint:exhaustive // the others are of the network
	case faultKill:
		r.tell(history.Event{Kind: history.KindKill, Worker: p.id})
		p.kill()
		pause(ctx, r.ttl/4)
		if err := r.start(ctx, f.worker); err != nil {
			r.fail(err)
		}
		return
	case faultFreeze:
		r.tell(history.Event{Kind: history.KindFreeze, Worker: p.id})
		p.signal(syscall.SIGSTOP)
		pause(ctx, f.lasts)
		r.tell(history.Event{Kind: history.KindThaw, Worker: p.id})
		p.signal(syscall.SIGCONT)
		return
	}
	r.tell(history.Event{Kind: history.KindFault, Worker: p.id, Text: string(f.fault)})
	if r.able.link {
		inflictLink(ctx, p.link, f)
	} else {
		inflictRelays(ctx, r.relays[f.worker], f)
	}
	r.tell(history.Event{Kind: history.KindHeal, Worker: p.id, Text: string(f.fault)})
}

func inflictRelays(ctx context.Context, relays []*chaos.Proxy, f planned) {
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
	pause(ctx, f.lasts)
	for _, p := range relays {
		p.Heal()
	}
}

func inflictLink(ctx context.Context, l *link, f planned) {
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
	pause(ctx, f.lasts)
	if f.fault == faultCut {
		l.lose()
	}
	l.heal()
}

// hurtServer stops or crashes one server. The event is for all workers.
func (r *run) hurtServer(ctx context.Context, f planned) {
	n := int(f.at/time.Millisecond) % len(r.servers.members)
	m := r.servers.members[n]
	text := fmt.Sprintf("%s, %d", f.fault, n+1)
	r.tell(history.Event{Kind: history.KindFault, Text: text})
	if f.fault == faultServerStop {
		m.signal(syscall.SIGSTOP)
		pause(ctx, f.lasts)
		m.signal(syscall.SIGCONT)
	} else {
		m.crash()
		pause(ctx, r.ttl/4)
		if err := errors.Join(m.start(), m.ready(context.WithoutCancel(ctx))); err != nil {
			r.fail(err)
		}
	}
	r.tell(history.Event{Kind: history.KindHeal, Text: text})
}
