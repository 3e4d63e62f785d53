package redlock

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// said returns the answer of the first node to one operation.
func (p *panel) said(t *testing.T, asked request) []program.Reply {
	t.Helper()
	type result struct {
		list []program.Reply
		err  error
	}
	got := make(chan result, 1)
	p.nodes[0].submit(&op{request: asked, reply: func(list []program.Reply, err error) { got <- result{list, err} }})
	r := <-got
	if r.err != nil {
		t.Fatalf("%+v: %v", asked, r.err)
	}
	return r.list
}

// vote1 requests a vote for one of the readers.
func vote1(lease string, attempt int64) request {
	return request{
		verb: opAcquire, lock: "n", args: []string{"n", lease, itoa(attempt), "0"},
		terms: terms{ttl: "60000", mode: "s", permits: "1", limit: "0", owner: "owner", note: "note"},
	}
}

// An attempt that was released before it arrived gets no vote, nor does one before it: a
// request can overtake its own release. The next attempt does.
func TestAttemptThatWasTakenBack(t *testing.T) {
	t.Parallel()
	p := newPanel(t, testserver.RedisNodes(t, 3, "--appendonly", "no"))
	lease := string(backend.NewLeaseID())
	if r := p.said(t, one(opBack, "n", lease, "5", "0")); r[0].N != 0 {
		t.Fatalf("there was no vote, and %v was taken back", r)
	}
	for _, late := range []int64{4, 5} {
		if r := p.said(t, vote1(lease, late)); r[0].S != "S" {
			t.Errorf("attempt %d, which has ended, got %v", late, r)
		}
	}
	if r := p.said(t, vote1(lease, 6)); r[0].S != "G" {
		t.Errorf("the next attempt got %v", r)
	}
}

// A token is recorded for a lease only if no other lease has one as great: two readers that
// are held together would have the same.
func TestTokenOfAnotherIsNotNoted(t *testing.T) {
	t.Parallel()
	p := newPanel(t, testserver.RedisNodes(t, 3, "--appendonly", "no"))
	first, second := string(backend.NewLeaseID()), string(backend.NewLeaseID())
	lesser := decode(p.said(t, vote1(first, 1))[1:])
	greater := decode(p.said(t, vote1(second, 1))[1:])
	low, high := lesser.Number(), greater.Number()
	if lesser.Err != nil || greater.Err != nil || low >= high {
		t.Fatalf("tokens %d and %d, %v, %v", low, high, lesser.Err, greater.Err)
	}
	for _, token := range []int64{low, high} {
		if r := p.said(t, one("write", "n", first, itoa(token))); r[0].S != "NO" {
			t.Errorf("the first has the token %d noted, and the second has %d: %v", token, high, r)
		}
	}
	if r := p.said(t, one("write", "n", second, itoa(high))); r[0].S != "OK" {
		t.Errorf("its own: %v", r)
	}
	if r := p.said(t, one("write", "n", first, itoa(high+1))); r[0].S != "OK" {
		t.Errorf("a greater one: %v", r)
	}
}

// Of several that have the lock together each ends by itself: the next lease need not wait
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
	for _, ttl := range []time.Duration{5 * time.Minute, 5 * time.Minute, 5 * time.Minute, 2 * time.Second} {
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
			t.Fatalf("the fourth permit was held for 2 s, and no client has acquired it a minute later: %v", err)
		}
	}
}

// A token is not recorded where data may have been lost: the greater ones that the node knew
// of may be what is missing. Nor does the node vote.
func TestTokenIsNotNotedInQuarantine(t *testing.T) {
	t.Parallel()
	servers := testserver.RedisNodes(t, 3, "--appendonly", "no")
	p := newPanel(t, servers)
	lease := string(backend.NewLeaseID())
	token := decode(p.said(t, vote1(lease, 1))[1:])
	higher := itoa(token.Number() + 1)
	p.mode = "q" // like a client that keeps the quarantine, which has just begun here
	if r := p.said(t, one("write", "n", lease, higher)); r[0].S != "NO" {
		t.Errorf("a token was noted: %v", r)
	}
	if r := p.said(t, vote1(string(backend.NewLeaseID()), 1)); r[0].S != "Q" {
		t.Errorf("a vote was given: %v", r)
	}
	p.mode = "-"
	if r := p.said(t, one("write", "n", lease, higher)); r[0].S != "OK" {
		t.Errorf("without a quarantine: %v", r)
	}
}

// An operator's clock that is hours ahead does not push the counters there: no client could
// get the lock until the clocks of the nodes are there.
func TestBreakWithTheClockAhead(t *testing.T) {
	t.Parallel()
	p := newPanel(t, testserver.RedisNodes(t, 3, "--appendonly", "no"))
	const ahead = 2 * time.Hour
	take := func() error {
		_, err := p.Acquire(t.Context(), backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute})
		return err
	}
	if err := take(); err != nil {
		t.Fatal(err)
	}
	p.clock = func() int64 { return time.Now().Add(ahead).UnixMicro() }
	if _, err := p.Break(t.Context(), backend.BreakRequest{Name: "n"}); !errors.Is(err, ErrClock) || !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("%v; want ErrClock", err)
	}
	p.clock = func() int64 { return time.Now().UnixMicro() }
	if err := take(); !errors.Is(err, backend.ErrHeld) {
		t.Errorf("nothing was broken, and the lock is not held: %v", err)
	}
	if _, err := p.Break(t.Context(), backend.BreakRequest{Name: "n"}); err != nil {
		t.Error(err)
	}
	if err := take(); err != nil {
		t.Errorf("after it was broken: %v", err)
	}
}

// A page of many locks does not block a node, and is in the order of bytes.
func TestListOfMany(t *testing.T) {
	t.Parallel()
	servers := testserver.RedisNodes(t, 3, "--appendonly", "no")
	p := newPanel(t, servers)
	const many = 100_000
	for _, s := range servers {
		s.Do("EVAL", `for i = 1, ARGV[1] do redis.call('ZADD', KEYS[1], ARGV[2] + i, 'the same beginning of all names/' .. i) end`,
			"1", "hfr:n", itoa(many), itoa(time.Now().Add(time.Hour).UnixMicro()))
	}
	names := []string{"a", "B", "b/1", "b/10", "b/2", "é"}
	for _, name := range names {
		_, err := p.Acquire(t.Context(), backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Timed: true, TTL: 5 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range servers {
		t.Logf("a node was busy for %s", s.CPU())
	}
	var listed []string
	for after, pages := "", 0; pages == 0 || after != ""; pages++ {
		page, err := p.List(t.Context(), backend.ListRequest{Prefix: "b", After: after, Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range page.Locks {
			listed = append(listed, l.Name)
		}
		after = page.Next
	}
	if fmt.Sprint(listed) != "[b/1 b/10 b/2]" {
		t.Errorf("with a prefix: %q", listed)
	}
	if _, err := p.List(t.Context(), backend.ListRequest{Limit: 10}); err != nil {
		t.Fatal(err)
	}
	for _, s := range servers {
		t.Logf("a node was busy for %s", s.CPU())
		if n, _ := s.Do("EXISTS", "hfr:t").(int64); n > 0 {
			t.Error("something is left behind")
		}
	}
}

// A lease is held for as long as a quorum of its votes lasts, and not for as long as the last
// of them: a retry for it returns that much time and no more.
func TestLeftIsThatOfTheQuorum(t *testing.T) {
	t.Parallel()
	p := newPanel(t, testserver.RedisNodes(t, 3, "--appendonly", "no"))
	req := backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute}
	if _, err := p.Acquire(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	const others = 0b110
	p.cutOff(t, others)
	longer := backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: req.Name, Lease: req.Lease, TTL: 5 * time.Minute}}}
	if r, err := p.Renew(t.Context(), longer); err == nil && r.Leases[0].Err == nil {
		t.Fatalf("one of three renewed it: %+v", r)
	}
	p.cutOff(t, 0)
	g, err := p.Acquire(t.Context(), req)
	if err != nil || g.Left > req.TTL {
		t.Errorf("it has %s left, %v", g.Left, err)
	}
}

// A permit is renewed by as many nodes as it takes to get one: with fewer there would be room
// for one more than there are.
func TestPermitIsRenewedByItsQuorum(t *testing.T) {
	t.Parallel()
	p := newPanel(t, testserver.RedisNodes(t, 3, "--appendonly", "no"))
	req := backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute, Mode: backend.Shared, Limit: 2}
	if _, err := p.Acquire(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	renew := backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: req.Name, Lease: req.Lease, TTL: time.Minute}}}
	for cut, want := range map[int]bool{0: true, 0b100: false} {
		p.cutOff(t, cut)
		r, err := p.Renew(t.Context(), renew)
		if got := err == nil && r.Leases[0].Err == nil; got != want {
			t.Errorf("nodes %03b away: %+v, %v", cut, r, err)
		}
	}
}
