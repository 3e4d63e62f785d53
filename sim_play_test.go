package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-io/holdfast"
)

// player is one client of the simulation: it acquires and releases locks in every possible way.
type player struct {
	*holdfast.Client
	referee *referee
	rand    *rand.Rand
	pace    int
}

// ms returns n milliseconds, or longer on a slow day.
func (p *player) ms(n int) time.Duration { return time.Duration(p.pace*n) * time.Millisecond }

// upTo returns a random time up to n milliseconds, on any day.
func (p *player) upTo(n int) time.Duration { return time.Duration(p.rand.IntN(n)) * time.Millisecond }

func (p *player) lock() string { return fmt.Sprintf("lock-%d", p.rand.IntN(3)) }

// play runs until ctx ends.
func (p *player) play(ctx context.Context) {
	for ctx.Err() == nil {
		switch p.rand.IntN(24) {
		case 0:
			name := p.lock()
			if p.rand.IntN(4) == 0 {
				name = "semaphore"
			}
			p.referee.take(ctx, p.Client, name)
		case 1, 2:
			p.several(ctx)
		default:
			p.one(ctx)
		}
	}
}

// one acquires one lock, perhaps for longer or more than once, and releases it.
func (p *player) one(ctx context.Context) {
	name, limit := p.lock(), 0
	take := p.Acquire
	var opts []holdfast.AcquireOption
	switch p.rand.IntN(12) {
	case 0:
		opts = append(opts, holdfast.Shared())
	case 1:
		name, limit = "semaphore", 2
		opts = append(opts, holdfast.Limit(limit))
	case 2:
		opts = append(opts, holdfast.TTL(p.ms(5000)))
	case 3:
		opts = append(opts, holdfast.Wait(p.ms(p.rand.IntN(3000))))
	case 4:
		opts = append(opts, holdfast.NoRenew(), holdfast.TTL(p.ms(4000)))
	case 5:
		opts = append(opts, holdfast.AtLeast(p.ms(500)))
	case 6, 7:
		take = p.TryAcquire
	}
	patience, cancel := context.WithTimeout(ctx, p.ms(1000*(1+p.rand.IntN(30))))
	defer cancel()
	p.referee.calls.Add(1)
	lock, err := take(patience, name, opts...)
	if err != nil {
		p.refused(ctx, err)
		return
	}
	p.referee.enter(lock, limit)
	work := time.Duration(p.rand.ExpFloat64() * float64(p.ms(2000)))
	if sleep(lock.Context(), work/2) {
		switch p.rand.IntN(4) {
		case 0, 1:
			p.extend(lock)
		case 2:
			if len(opts) == 0 {
				p.again(lock)
			}
		}
	}
	sleep(lock.Context(), work/2)
	p.giveBack(ctx, lock, lock)
}

// several acquires locks of which other players acquire some, in whatever order they are named.
func (p *player) several(ctx context.Context) {
	names := []string{p.lock(), p.lock(), p.lock()}
	patience, cancel := context.WithTimeout(ctx, p.ms(1000*(1+p.rand.IntN(30))))
	defer cancel()
	p.referee.calls.Add(1)
	locks, err := p.AcquireAll(patience, names)
	if err != nil {
		p.refused(ctx, err)
		return
	}
	p.referee.calls.Add(int64(len(locks) - 1))
	for _, l := range locks {
		p.referee.enter(l, 0)
	}
	sleep(locks.Context(), time.Duration(p.rand.ExpFloat64()*float64(p.ms(1000))))
	p.giveBack(ctx, locks, locks...)
}

func (p *player) refused(ctx context.Context, err error) {
	if errors.Is(err, holdfast.ErrInvalid) || errors.Is(err, holdfast.ErrDeadlock) {
		p.referee.t.Error(err)
	}
	sleep(ctx, p.ms(p.rand.IntN(1000)))
}

// extend makes the lease longer or shorter than before. After a failure it is as before, or lost.
func (p *player) extend(lock *holdfast.Lock) {
	ttl := p.ms(2000 + p.rand.IntN(20_000))
	extending, cancel := context.WithTimeout(lock.Context(), p.upTo(3000))
	defer cancel()
	p.referee.calls.Add(1)
	_ = lock.Extend(extending, ttl)
}

// again acquires a lock that the player holds, which needs no other client.
func (p *player) again(lock *holdfast.Lock) {
	p.referee.calls.Add(1)
	inner, err := p.Acquire(lock.Context(), lock.Name(), holdfast.Reentrant())
	if err != nil {
		if lock.Err() == nil {
			p.referee.t.Errorf("%s: token %d is held, and re-entry failed: %v", lock.Name(), lock.Token(), err)
		}
		return
	}
	if inner.Token() != lock.Token() {
		p.referee.t.Errorf("%s: token %d, and re-entry returned %d", lock.Name(), lock.Token(), inner.Token())
	}
	p.referee.calls.Add(1)
	if err := inner.Release(lock.Context()); err != nil && lock.Err() == nil {
		p.referee.t.Errorf("%s: token %d is held, and the release of a re-entry failed: %v", lock.Name(), lock.Token(), err)
	}
}

// giveBack stops considering the lock held before it releases, or when it was told of the loss.
func (p *player) giveBack(ctx context.Context, had interface{ Release(context.Context) error }, locks ...*holdfast.Lock) {
	for _, l := range locks {
		p.referee.calls.Add(1)
		p.referee.leave(l)
	}
	if p.rand.IntN(10) == 0 {
		_ = had.Release(ctx)
		return
	}
	done, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.upTo(2000))
	defer cancel()
	_ = had.Release(done)
}
