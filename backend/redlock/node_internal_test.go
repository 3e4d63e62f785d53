package redlock

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// said is what the first node answers to one operation.
func (p *panel) said(t *testing.T, asked request) []any {
	t.Helper()
	type result struct {
		list []any
		err  error
	}
	got := make(chan result, 1)
	p.nodes[0].submit(&op{request: asked, reply: func(list []any, err error) { got <- result{list, err} }})
	r := <-got
	if r.err != nil {
		t.Fatalf("%+v: %v", asked, r.err)
	}
	return r.list
}

// vote1 asks for a vote for one of the readers.
func vote1(lease string, attempt int64) request {
	return request{
		verb: opAcquire, lock: "n", own: []string{"n", lease, itoa(attempt), "0"},
		terms: terms{ttl: "60000", mode: "s", permits: "1", limit: "0", owner: "owner", note: "note"},
	}
}

// An attempt that was taken back before it came gets no vote, nor does one before it: a
// request can overtake the one that takes it back. The next attempt does.
func TestAttemptThatWasTakenBack(t *testing.T) {
	t.Parallel()
	p := newPanel(t, testserver.RedisNodes(t, 3, "--appendonly", "no"))
	lease := string(backend.NewLeaseID())
	if r := p.said(t, one("back", "n", lease, "5", "1", "0")); r[0] != int64(0) {
		t.Fatalf("there was no vote, and %v was taken back", r)
	}
	for _, late := range []int64{4, 5} {
		if r := p.said(t, vote1(lease, late)); r[0] != "S" {
			t.Errorf("attempt %d, which is over, got %v", late, r)
		}
	}
	if r := p.said(t, vote1(lease, 6)); r[0] != "G" {
		t.Errorf("the next attempt got %v", r)
	}
}

// A token is noted for a lease only where no other has one as great: two readers that are
// out together would have the same.
func TestTokenOfAnotherIsNotNoted(t *testing.T) {
	t.Parallel()
	p := newPanel(t, testserver.RedisNodes(t, 3, "--appendonly", "no"))
	first, second := string(backend.NewLeaseID()), string(backend.NewLeaseID())
	lesser := decoder{list: p.said(t, vote1(first, 1))[1:]}
	greater := decoder{list: p.said(t, vote1(second, 1))[1:]}
	low, high := lesser.number(), greater.number()
	if lesser.err != nil || greater.err != nil || low >= high {
		t.Fatalf("tokens %d and %d, %v, %v", low, high, lesser.err, greater.err)
	}
	for _, token := range []int64{low, high} {
		if r := p.said(t, one("write", "n", first, itoa(token))); r[0] != "NO" {
			t.Errorf("the first has the token %d noted, and the second has %d: %v", token, high, r)
		}
	}
	if r := p.said(t, one("write", "n", second, itoa(high))); r[0] != "OK" {
		t.Errorf("its own: %v", r)
	}
	if r := p.said(t, one("write", "n", first, itoa(high+1))); r[0] != "OK" {
		t.Errorf("a greater one: %v", r)
	}
}

// Of several that have the lock together each ends by itself: who comes next need not wait
// for the last of them.
func TestOneOfSeveralEnds(t *testing.T) {
	t.Parallel()
	p := newPanel(t, testserver.RedisNodes(t, 3, "--appendonly", "no"))
	take := func(ttl time.Duration) error {
		_, err := p.Acquire(t.Context(), backend.AcquireRequest{
			Name: "n", Lease: backend.NewLeaseID(), Timed: true, TTL: ttl, Mode: backend.Shared, Limit: 4,
		})
		if err != nil {
			return fmt.Errorf("permit of %s: %w", ttl, err)
		}
		return nil
	}
	for _, ttl := range []time.Duration{DefaultMaxTTL, DefaultMaxTTL, DefaultMaxTTL, 2 * time.Second} {
		if err := take(ttl); err != nil {
			t.Fatal(err)
		}
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); ; <-tick.C {
		err := take(time.Minute)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the fourth permit was out for 2 s, and nobody has it a minute later: %v", err)
		}
	}
}
