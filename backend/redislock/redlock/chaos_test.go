package redlock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// relayed puts relays between one process and the servers.
func relayed(t *testing.T, c cluster) ([]*chaos.Proxy, string) {
	t.Helper()
	var relays []*chaos.Proxy
	var addrs []string
	for _, s := range c {
		p := chaos.Start(t, s.Addr())
		relays = append(relays, p)
		addrs = append(addrs, p.Addr())
	}
	return relays, "redlock://" + strings.Join(addrs, ",") + "?max_ttl=5m&timeout="
}

// Requests arrive, and no reply of three nodes does: the outcome is unknown, and the error
// says so. Once the network heals the lease is released, and was never granted twice.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	c := start(t)
	relays, url := relayed(t, c)
	a, b := openURL(t, url+"3s"), c.open(t, "timeout=30s")
	first := ask("first")
	take(t, a, first)
	give(t, a, first) // it is connected
	for _, p := range relays[:3] {
		p.Hold(chaos.Replies)
	}
	r := ask("n")
	_, err := a.Acquire(within(t, patience), r)
	var away *backend.UnavailableError
	if !errors.As(err, &away) || !away.MayHold {
		t.Fatalf("acquire without replies: %v; want that it may be held", err)
	}
	for _, p := range relays {
		p.Heal()
	}
	free(t, a, backend.ReleaseRequest{Name: r.Name, Lease: r.Lease, Abandon: true})
	take(t, b, ask("n")) // the nodes have nothing of it that could be in the way
	if g, err := a.Acquire(within(t, patience), r); !errors.Is(err, backend.ErrLost) && !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("acquire of what was abandoned gave %+v, %v", g, err)
	}
}

// C14: all votes are given, and no reply arrives until they have ended. A late reply is no
// grant.
func TestVotesThatCameLate(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	c := start(t)
	relays, url := relayed(t, c)
	a, first := openURL(t, url+"50s"), ask("first")
	take(t, a, first)
	give(t, a, first) // it is connected
	for _, p := range relays {
		p.Hold(chaos.Replies)
	}
	const ttl = 20 * time.Second // the votes have to be seen in this time
	got := make(chan error, 1)
	go func() {
		_, err := a.Acquire(within(t, patience), ask("late", func(r *backend.AcquireRequest) { r.TTL = ttl }))
		got <- err
	}()
	counted := func() int64 {
		n := int64(0)
		for _, s := range c {
			n += votes(s, "late")
		}
		return n
	}
	// An answer to the release before may be held, too, and what comes after it waits.
	leasetest.Eventually(t, "a majority has voted", func() bool { return counted() > nodes/2 })
	leasetest.Eventually(t, "the votes have ended", func() bool { return counted() == 0 })
	for _, p := range relays {
		p.Release(chaos.Replies)
	}
	if err := <-got; !errors.Is(err, backend.ErrLost) {
		t.Errorf("votes that had ended made %v; want ErrLost", err)
	}
}

// One process reaches the first three nodes, the other the last three. The holder of the lock
// is the only one, and tokens grow from one to the other.
func TestPartition(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	c := start(t)
	leftRelays, left := relayed(t, c)
	rightRelays, right := relayed(t, c)
	a, b := openURL(t, left+"1s"), openURL(t, right+"1s")
	for i := range 2 {
		leftRelays[3+i].BlackHole()
		rightRelays[i].BlackHole()
	}
	var last fence.Token
	for range 10 {
		for _, sides := range [][2]*redlock.Backend{{a, b}, {b, a}} {
			r := ask("n")
			g := take(t, sides[0], r)
			if g.Token <= last {
				t.Fatalf("token %d after %d", g.Token, last)
			}
			last = g.Token
			// The other side sees one node of the three, and cannot know of two more.
			if got, err := sides[1].Acquire(within(t, patience), ask("n")); err == nil {
				t.Fatalf("granted twice: %+v and %+v", g, got)
			}
			give(t, sides[0], r)
		}
	}
}
