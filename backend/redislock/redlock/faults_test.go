package redlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// Two nodes of five that are dead, or hang, cost no client any time.
func TestTwoAway(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(*testserver.RedisServer){
		"dead": (*testserver.RedisServer).Kill,
		"hung": func(s *testserver.RedisServer) { s.Process().Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t)
			b := c.open(t, slow)
			held := ask("held")
			g := take(t, b, held)
			away(c[1])
			away(c[4])
			pairs(t, b, slowTime)
			if r := renewed(t, b, held); r.Err != nil || r.Token != g.Token {
				t.Fatalf("renew: %+v", r)
			}
			const timeout = time.Second
			other := c.open(t, "timeout="+timeout.String()) // one that was not there before
			theirs := ask("held")
			if _, err := leasetest.Insist(t, func(ctx context.Context) (backend.Grant, error) { return other.Acquire(ctx, theirs) }); !errors.Is(err, backend.ErrHeld) {
				t.Fatalf("acquire of what is held: %v", err)
			}
			pairs(t, other, timeout)
			away, err := b.Away(t.Context())
			if err != nil || len(away) != 2 || !strings.HasPrefix(away[0], "node 2 of 5 is unavailable: ") || !strings.HasPrefix(away[1], "node 5 of 5 is") {
				t.Errorf("Away: %q, %v", away, err)
			}
			give(t, b, held)
			take(t, other, ask("held"))
		})
	}
}

// With three nodes of five unavailable nothing is granted, the error says why, and the votes
// of the other two are released.
func TestThreeAway(t *testing.T) {
	t.Parallel()
	c := start(t)
	const timeout = time.Second
	b := c.open(t, "timeout="+timeout.String())
	held := ask("held")
	take(t, b, held)
	for _, s := range c[2:] {
		s.Kill()
	}
	r := ask("n")
	for _, wait := range []bool{false, true} {
		r.Wait = wait
		_, err := b.Acquire(within(t, patience), r)
		var away *backend.UnavailableError
		if !errors.Is(err, redlock.ErrNoQuorum) || !errors.As(err, &away) {
			t.Fatalf("acquire with wait %v: %v; want ErrNoQuorum", wait, err)
		}
	}
	for _, s := range c[:2] {
		leasetest.Eventually(t, "the votes are released", func() bool { return votes(s, "n") == 0 })
	}
	// A renewal of a lease that may still be held is not a loss.
	if err := renewed(t, b, held).Err; !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrLost) {
		t.Fatalf("renew: %v; want *UnavailableError", err)
	}
	if err := b.Release(t.Context(), backend.ReleaseRequest{Name: held.Name, Lease: held.Lease}); !errors.Is(err, backend.ErrUnavailable) {
		t.Fatalf("release: %v; want *UnavailableError", err)
	}
	if _, err := redlock.Open(within(t, patience), c.url("timeout=1s"), redlock.Config{}); !errors.Is(err, redlock.ErrNoQuorum) {
		t.Fatalf("open: %v; want ErrNoQuorum", err)
	}
	if _, err := b.Away(t.Context()); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Away: %v; want *UnavailableError", err)
	}
	// They come back with their data, and get the releases that they missed.
	for _, s := range c[2:] {
		s.Start()
	}
	for _, s := range c {
		leasetest.Eventually(t, "the vote is released", func() bool { return votes(s, "held") == 0 })
	}
	pairs(t, b, timeout)
	if away, err := b.Away(t.Context()); err != nil || len(away) > 0 {
		t.Errorf("Away, when all are back: %q, %v", away, err)
	}
}

// A node that hangs executes its requests when it wakes. That leaves no ghost: the lease was
// released, and the node gets the release.
func TestLateRequestLeavesNoGhost(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	c := start(t)
	const timeout = 2 * time.Second // the others answer in time, also on a busy machine
	b := c.open(t, "timeout="+timeout.String())
	hung, began := c[2], time.Now()
	hung.Process().Stop()
	for i := range 20 {
		r := ask(fmt.Sprintf("ghost/%d", i))
		take(t, b, r)
		if i%2 == 0 {
			give(t, b, r)
			continue
		}
		free(t, b, backend.ReleaseRequest{Name: r.Name, Lease: r.Lease, Abandon: true})
	}
	for time.Since(began) < 2*timeout { // until it is taken for down
		r := ask("other")
		take(t, b, r)
		give(t, b, r)
	}
	hung.Process().Cont()
	for i := range 20 {
		leasetest.Eventually(t, "the vote is released", func() bool { return votes(hung, fmt.Sprintf("ghost/%d", i)) == 0 })
	}
}

// The hazard of Redlock: a lease has its votes on three nodes, one of which restarts without
// its data while the other two come up. With the quarantine no client gets a second lease;
// without it, one does.
func TestRestartedEmpty(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for _, quarantine := range []string{"on", "off"} {
		t.Run(quarantine, func(t *testing.T) {
			t.Parallel()
			c := start(t, "--save", "")
			a := c.open(t, "max_ttl=10s&timeout=1s&quarantine="+quarantine)
			c[3].Kill()
			c[4].Kill()
			held := ask("n", short)
			g := take(t, a, held)
			began := time.Now() // before the node can have started
			c[2].RestartEmpty()
			c[3].Start()
			c[4].Start()
			b := c.open(t, "max_ttl=10s&timeout=30s&quarantine="+quarantine)
			_, err := b.Acquire(within(t, patience), ask("n", short))
			if quarantine == "off" {
				if err != nil && time.Since(g.Asked) < g.Left {
					t.Fatalf("%v; without a quarantine the lock is granted twice: what is tested here is not tested", err)
				}
				return
			}
			if err == nil && time.Since(g.Asked) < g.Left {
				t.Fatal("granted twice")
			}
			// The first lease may continue, on the two nodes that it has, until it expires.
			// The node that forgot votes when no lease that it forgot can be held.
			r := ask("n", waiting, short)
			next := take(t, b, r)
			if early := 10*time.Second - time.Since(began); early > time.Second {
				t.Errorf("granted %s before the quarantine had ended", early)
			}
			if next.Token <= g.Token {
				t.Errorf("token %d after %d", next.Token, g.Token)
			}
		})
	}
}

// A node that lost its data does not count: with two others dead there is no quorum, and the
// error says for how long.
func TestQuarantineIsTold(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*testserver.RedisServer){
		"restarted": (*testserver.RedisServer).RestartEmpty,
		"flushed":   (*testserver.RedisServer).FlushAll,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t)
			b := c.open(t, "timeout=1s&max_ttl=1h")
			lose(c[0])
			c[3].Kill()
			c[4].Kill()
			// Once it is up it says that it does not vote; until then it is unavailable.
			leasetest.Succeeds(t, func() error {
				_, err := b.Acquire(t.Context(), ask("n"))
				var away *backend.UnavailableError
				if !errors.As(err, &away) || !errors.Is(err, backend.ErrQuarantine) {
					return fmt.Errorf("acquire: %w; want ErrQuarantine", err)
				}
				told := b.Quarantined(t.Context())
				if q, ok := errors.AsType[*backend.QuarantineError](told); !ok || q.Left <= 50*time.Minute {
					return fmt.Errorf("Quarantined: %w", told)
				}
				if away.RetryAfter <= 50*time.Minute || away.RetryAfter > time.Hour {
					return fmt.Errorf("again in %s; max_ttl is 1h", away.RetryAfter)
				}
				return nil
			})
		})
	}
}

// Permits need more than a majority, and the error says so.
func TestPermitsWithNodesAway(t *testing.T) {
	t.Parallel()
	c := start(t)
	b := c.open(t, "timeout=1s")
	c[0].Kill()
	take(t, b, ask("two", permits(2)))
	take(t, b, ask("three", permits(3)))
	if _, err := b.Acquire(within(t, patience), ask("four", permits(4))); !errors.Is(err, redlock.ErrNoQuorum) {
		t.Errorf("limit 4 with one node away: %v; want ErrNoQuorum", err)
	}
	c[1].Kill()
	if _, err := b.Acquire(within(t, patience), ask("two", permits(2))); !errors.Is(err, redlock.ErrNoQuorum) {
		t.Errorf("limit 2 with two nodes away: %v; want ErrNoQuorum", err)
	}
	take(t, b, ask("exclusive"))
	take(t, b, ask("readers", permits(0)))
	// What was granted on four nodes cannot be renewed on three.
	if _, err := leasetest.Insist(t, func(ctx context.Context) (backend.LockInfo, error) { return b.Inspect(ctx, "two") }); err != nil {
		t.Error(err)
	}
}

// A waiter is woken by push while two nodes hang: immediately, and not by its timer.
func TestPushWithTwoHung(t *testing.T) {
	t.Parallel()
	c := start(t)
	a, b := c.open(t, slow), c.open(t, slow)
	c[0].Process().Stop()
	c[1].Process().Stop()
	const rounds = 5
	byTimer := 0
	for range rounds {
		held := ask("n")
		take(t, a, held)
		r := ask("n", waiting)
		got := leasetest.Start(t, b, r)
		leasetest.Succeeds(t, func() error { // it is subscribed
			for _, s := range c[2:] {
				if n, _ := s.Do("PUBSUB", "NUMSUB", "hfr:w:n").([]any); len(n) < 2 || n[1] != int64(1) {
					return fmt.Errorf("subscriptions: %v", n)
				}
			}
			return nil
		})
		give(t, a, held)
		g := <-got
		if g.Err != nil {
			t.Fatal(g.Err)
		}
		if g.Grant.ByTimer {
			byTimer++
		}
		give(t, b, r)
	}
	if byTimer == rounds {
		t.Error("a timer found each of the grants")
	}
}

// Data that is not ours, or of another version, is not touched, and nothing is granted.
func TestForeignData(t *testing.T) {
	t.Parallel()
	c := start(t)
	b := c.open(t, "timeout=10s")
	for _, s := range c[:3] {
		s.Do("SET", "hfr:l:n", "something")
		s.Do("SET", "hfr:f:m", "something")
	}
	for _, name := range []string{"n", "m"} {
		if _, err := b.Acquire(t.Context(), ask(name)); !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("%s: %v; want *UnavailableError", name, err)
		}
	}
	if got := c[0].Do("GET", "hfr:l:n"); got != "something" {
		t.Errorf("%v is there now", got)
	}
	for _, s := range c[:3] {
		s.Do("SET", "hfr:m", "hfr3 what comes later")
	}
	if _, err := b.Acquire(t.Context(), ask("o")); !errors.Is(err, redlock.ErrForeignData) {
		t.Errorf("another format: %v; want ErrForeignData", err)
	}
}

// Each node forgets a counter two days after its last use, by itself, whatever the use was.
func TestCountersAreForgotten(t *testing.T) {
	t.Parallel()
	c := start(t)
	b := c.open(t, slow)
	shared := func(r *backend.AcquireRequest) { r.Mode = backend.Shared }
	again := ask("renewed", func(r *backend.AcquireRequest) { r.TTL = time.Minute })
	take(t, b, ask("held"))
	take(t, b, again)
	again.TTL = 0
	take(t, b, ask("shared", shared))
	for _, r := range []backend.AcquireRequest{ask("released"), ask("released shared", shared)} {
		take(t, b, r)
		give(t, b, r)
	}
	if err := renewed(t, b, again).Err; err != nil {
		t.Fatal(err)
	}
	take(t, b, ask("broken"))
	if _, err := b.Break(within(t, patience), backend.BreakRequest{Name: "broken"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.List(within(t, patience), backend.ListRequest{}); err != nil {
		t.Fatal(err)
	}
	for i, s := range c {
		if n := s.Do("EXISTS", "hfr:t"); n != int64(0) {
			t.Errorf("node %d keeps the names that it sorted for a list", i)
		}
		for _, key := range s.Do("KEYS", "hfr:f:*").([]any) {
			const days = 48 * time.Hour
			left, _ := s.Do("PTTL", key.(string)).(int64)
			if d := time.Duration(left) * time.Millisecond; d <= days-patience || d > days {
				t.Errorf("node %d keeps %v for another %s", i, key, d)
			}
		}
	}
}

// With the memory of the nodes full nothing new is granted, and what is held is renewed and
// released.
func TestMemoryIsFull(t *testing.T) {
	t.Parallel()
	for form, args := range map[string][]string{"function": nil, "script": scriptsOnly()} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			c := start(t, args...)
			b := c.open(t, slow)
			alone, shared := ask("alone"), ask("shared", permits(2))
			take(t, b, alone)
			take(t, b, shared)
			limit := func(bytes string) {
				for _, s := range c {
					s.Do("CONFIG", "SET", "maxmemory", bytes)
				}
			}
			limit("1")
			if _, err := b.Acquire(t.Context(), ask("new")); !errors.Is(err, backend.ErrUnavailable) {
				t.Errorf("acquire: %v; want *UnavailableError", err)
			}
			for _, r := range []backend.AcquireRequest{alone, shared} {
				if err := renewed(t, b, r).Err; err != nil {
					t.Errorf("renew %s: %v", r.Name, err)
				}
				give(t, b, r)
			}
			limit("0")
			take(t, b, ask("new"))
		})
	}
}

// Nine processes that want one lock at the same time split the votes of five nodes. They
// converge nevertheless: each gets it, again and again.
func TestCrowdConverges(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	c := start(t)
	const processes, rounds = 9, 20
	var out atomic.Int64
	var all, tries sync.WaitGroup
	// One bound for all grants: the winner is chance, and no process is promised to be next.
	ctx := within(t, 10*patience)
	values := make([]*redlock.Backend, processes)
	for i := range values {
		b := c.open(t, slow)
		values[i] = b
		all.Go(func() {
			for range rounds {
				r := ask("crowd", waiting)
				if _, err := b.Acquire(ctx, r); err != nil {
					t.Errorf("acquire: %v", err)
					return
				}
				if out.Add(1) != 1 {
					t.Error("two hold the lock")
				}
				out.Add(-1)
				if err := b.Release(t.Context(), backend.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err != nil {
					t.Errorf("release: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	// And of those that do not wait, one wins.
	for range 5 {
		won := make(chan backend.AcquireRequest, processes)
		for _, b := range values {
			tries.Go(func() {
				r := ask("try")
				if _, err := b.Acquire(t.Context(), r); err == nil {
					won <- r
				} else if !errors.Is(err, backend.ErrHeld) {
					t.Errorf("try: %v", err)
				}
			})
		}
		tries.Wait()
		if len(won) != 1 {
			t.Fatalf("%d of %d concurrent tries acquired the lock; want one", len(won), processes)
		}
		give(t, values[0], <-won)
	}
}

// All that a node has of a lock are keys with a TTL, so a policy that evicts only such keys deletes votes, too.
func TestEvictionWarning(t *testing.T) {
	t.Parallel()
	c := cluster(testserver.RedisNodes(t, 3))
	c[1].Do("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
	var log bytes.Buffer
	leasetest.Succeeds(t, func() error {
		log.Reset()
		b, err := redlock.Open(t.Context(), c.url(slow), redlock.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err == nil {
			err = b.Close()
		}
		return err
	})
	if got := log.String(); strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, "node=2 maxmemory_policy=volatile-lru") {
		t.Errorf("the log is %q", got)
	}
}
