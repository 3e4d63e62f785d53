package e2e_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/open"
)

// move is the move of programs from one store to another, as docs/moving.md describes it.
type move struct {
	t                *testing.T
	lock             string // its name
	oldURL, newURL   string
	epoch0, epoch1   *fence.Guard
	epoch2           *fence.Guard
	inside, overlaps atomic.Int64
	written          atomic.Int64
}

// program runs a section of one program: it holds its locks and writes once.
type program func() error

func (m *move) client(url string) *holdfast.Client {
	m.t.Helper()
	b, err := open.URL(m.t.Context(), url, open.Options{})
	if err != nil {
		m.t.Fatal(err)
	}
	// A machine or a store that stands still for some seconds takes no lock from a program, and no call gives up.
	c, err := holdfast.New(b, holdfast.Config{TTL: leasetest.Long, Timeout: leasetest.Patience})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if err := c.Close(context.WithoutCancel(m.t.Context())); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
			m.t.Error(err)
		}
		if err := b.Close(); err != nil {
			m.t.Error(err)
		}
	})
	return c
}

// section is what only one program does at a time.
func (m *move) section(guarded func(write func() error) error) error {
	if m.inside.Add(1) > 1 {
		m.overlaps.Add(1)
	}
	defer m.inside.Add(-1)
	time.Sleep(time.Millisecond)
	return guarded(func() error { m.written.Add(1); return nil })
}

// with is a program that locks on one store.
func (m *move) with(url string, g *fence.Guard) program {
	c := m.client(url)
	return func() error {
		return c.Do(m.t.Context(), m.lock, func(_ context.Context, l *holdfast.Lock) error {
			return m.section(func(write func() error) error { return g.Do(m.lock, l.Token(), write) })
		})
	}
}

// both is a program of the first deployment.
func (m *move) both() program {
	before, after := m.client(m.oldURL), m.client(m.newURL)
	return func() error {
		return before.Do(m.t.Context(), m.lock, func(ctx context.Context, first *holdfast.Lock) error {
			return after.Do(ctx, m.lock, func(_ context.Context, second *holdfast.Lock) error {
				return m.section(func(write func() error) error {
					err := m.epoch0.Do(m.lock, first.Token(), write)
					if errors.Is(err, fence.ErrEpoch) {
						err = m.epoch1.Do(m.lock, second.Token(), write)
					}
					return err
				})
			})
		})
	}
}

// beside runs sections of programs side by side, and returns how many there were. A write that was refused is not counted in
// written.
func (m *move) beside(all ...program) int64 {
	const sections = 25
	var work sync.WaitGroup
	for _, do := range all {
		work.Go(func() {
			for range sections {
				if err := do(); err != nil && !errors.Is(err, fence.ErrStale) && !errors.Is(err, fence.ErrEpoch) {
					m.t.Error(err)
				}
			}
		})
	}
	work.Wait()
	return int64(len(all) * sections)
}

// back is the way back from the second deployment: the first one again, and then the old store in epoch 2. No two sections
// overlap. From the first write in epoch 2 on, writes of the deployments before it are refused.
func (m *move) back(second func() program) {
	t, before := m.t, m.written.Load()
	n := m.beside(second(), second(), m.both(), m.both())
	if got := m.written.Load() - before; got != n {
		t.Errorf("going back to the first deployment, %d writes of %d", got, n)
	}
	again := func() program { return m.with(m.oldURL, m.epoch2) }
	if err := again()(); err != nil {
		t.Fatalf("the old store in epoch 2: %v", err)
	}
	before = m.written.Load()
	n = m.beside(m.both(), m.both(), again(), again())
	if got := m.written.Load() - before; got != n/2 {
		t.Errorf("beside the first deployment, %d writes in epoch 2 of %d", got, n/2)
	}
	for name, late := range map[string]program{"second": second(), "first": m.both()} {
		if err := late(); !errors.Is(err, fence.ErrEpoch) {
			t.Errorf("a late write of the %s deployment: %v", name, err)
		}
	}
	if n := m.overlaps.Load(); n > 0 {
		t.Errorf("on the way back, %d overlaps", n)
	}
}

// Programs move between stores whose tokens have nothing in common: no two sections overlap, no write of a step is
// refused, and a late write of the old store is. So it is on the way back. Without the first deployment, sections overlap.
func TestMoveBetweenStores(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	redis := "redis://" + sharedRedis().Addr() + "?quarantine=off"
	etcd := "etcd://" + sharedEtcd().Addr()
	for name, urls := range map[string][2]string{"to-smaller-tokens": {redis, etcd}, "to-greater-tokens": {etcd, redis}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := fence.NewGuard()
			m := &move{t: t, lock: name, oldURL: urls[0], newURL: urls[1], epoch0: g, epoch1: g.Epoch(1), epoch2: g.Epoch(2)}
			before, second := func() program { return m.with(m.oldURL, m.epoch0) }, func() program { return m.with(m.newURL, m.epoch1) }
			n := m.beside(before(), before(), m.both(), m.both())
			n += m.beside(m.both(), m.both(), second(), second())
			if m.overlaps.Load() > 0 || m.written.Load() != n {
				t.Errorf("%d overlaps; %d writes of %d", m.overlaps.Load(), m.written.Load(), n)
			}
			if err := before()(); !errors.Is(err, fence.ErrEpoch) {
				t.Errorf("a late write of the old store: %v", err)
			}
			m.back(second)
			// One of the two may be done before the other has connected.
			old, next := before(), second()
			leasetest.Eventually(t, "sections overlap without the first deployment, or the test shows nothing", func() bool {
				m.beside(old, next)
				return m.overlaps.Load() > 0
			})
		})
	}
}
