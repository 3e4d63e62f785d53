package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// switched is a node that can be cut off without notice.
type switched struct {
	link
	cut atomic.Bool
}

var errCut = errors.New("cut off")

func (s *switched) run(ctx context.Context, load bool, key string, a []string) ([]program.Reply, error) {
	if s.cut.Load() {
		return nil, errCut
	}
	return s.link.run(ctx, load, key, a)
}

// panel is a Backend on real servers of which each can be cut off.
type panel struct {
	*Backend
	switches []*switched
}

func newPanel(t *testing.T, servers []*testserver.RedisServer) *panel {
	t.Helper()
	return panelOf(t, servers, "off")
}

// three returns a panel on three servers.
func three(t *testing.T) *panel {
	t.Helper()
	return newPanel(t, testserver.RedisNodes(t, 3, "--appendonly", "no"))
}

// wanted returns a request for a lease of two minutes.
func wanted(name string, change ...func(*backend.AcquireRequest)) backend.AcquireRequest {
	r := backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Timed: true, TTL: 2 * time.Minute}
	for _, f := range change {
		f(&r)
	}
	return r
}

func permit(limit int) func(*backend.AcquireRequest) {
	return func(r *backend.AcquireRequest) { r.Mode, r.Limit = backend.Shared, limit }
}

func (p *panel) take(t *testing.T, r backend.AcquireRequest) backend.Grant {
	t.Helper()
	g, err := p.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// renew renews one lease, and returns why it could not.
func (p *panel) renew(t *testing.T, r backend.AcquireRequest, ttl time.Duration) error {
	t.Helper()
	res, err := p.Renew(t.Context(), backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: r.Name, Lease: r.Lease, TTL: ttl}}})
	if err != nil {
		return err
	}
	return res.Leases[0].Err
}

func panelOf(t *testing.T, servers []*testserver.RedisServer, quarantine string) *panel {
	t.Helper()
	target, err := parseURL("redlock://"+testserver.RedisAddrs(servers)+"?timeout=30s&max_ttl=5m&quarantine="+quarantine, Config{})
	if err != nil {
		t.Fatal(err)
	}
	script, err := newProgram()
	if err != nil {
		t.Fatal(err)
	}
	p := &panel{}
	var links []link
	for _, o := range target.options {
		s := &switched{link: newLink(nil, o, script)}
		p.switches = append(p.switches, s)
		links = append(links, s)
	}
	if p.Backend, err = open(t.Context(), links, target.cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// cutOff cuts off the nodes whose bits are set, and no others. Those that are back are up
// immediately.
func (p *panel) cutOff(t *testing.T, mask int) {
	t.Helper()
	for i, s := range p.switches {
		s.cut.Store(mask&(1<<i) != 0)
	}
	for i, n := range p.nodes {
		n.mu.Lock()
		down := n.down
		n.mu.Unlock()
		if down && mask&(1<<i) == 0 {
			if err := n.probe(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// absences returns the sets of two of five nodes, and none.
func absences() []int {
	all := []int{0}
	for mask := range 1 << 5 {
		if bits.OnesCount(uint(mask)) == 2 {
			all = append(all, mask)
		}
	}
	return all
}

// Tokens grow whichever two nodes are unavailable at one grant, at the next and at the one
// after that: all triples that differ by more than the names of the nodes, each on a lock that
// no node knows, on real servers. The clients have no clocks to help, so that only what the
// nodes answer to each grant is left.
func TestTokensOverAllAbsences(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	p := newPanel(t, testserver.RedisNodes(t, 5, "--appendonly", "no"))
	p.clock = func() int64 { return 0 }
	grants := 0
	grant := func(name string, last fence.Token, masks []int, i int) fence.Token {
		p.cutOff(t, masks[i])
		req := wanted(name)
		g, err := p.Acquire(t.Context(), req)
		if err != nil {
			t.Fatalf("nodes %05b away: grant %d: %v", masks, i, err)
		}
		grants++
		if g.Token <= last {
			t.Fatalf("nodes %05b away: grant %d has token %d after %d", masks, i, g.Token, last)
		}
		if err := p.Release(t.Context(), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease}); err != nil {
			t.Fatalf("nodes %05b away: release %d: %v", masks, i, err)
		}
		return g.Token
	}
	for _, one := range absences()[:2] {
		for _, two := range absences() {
			for _, three := range absences() {
				masks, last := []int{one, two, three}, fence.Token(0)
				for i := range masks {
					last = grant(fmt.Sprint("n", masks), last, masks, i)
				}
			}
		}
	}
	t.Logf("%d grants", grants)
}

// The same with counters of the nodes that differ as much as they can: each node alone has
// the greatest once.
func TestTokenIsWrittenBack(t *testing.T) {
	t.Parallel()
	servers := testserver.RedisNodes(t, 5, "--appendonly", "no")
	p := newPanel(t, servers)
	base := time.Now().UnixMicro()
	p.clock = func() int64 { return base }
	const far = 1000
	for i, s := range servers {
		name := "n" + string(rune('a'+i))
		s.Do("SET", "hfr:f:"+name, itoa(base+far)+" somebody-else-0123")
		req := wanted(name)
		// Two others are unavailable, so that the node is one of three.
		p.cutOff(t, 1<<((i+1)%5)|1<<((i+2)%5))
		g := p.take(t, req)
		if g.Token != fence.Token(base+far+1) {
			t.Errorf("token %d, want %d: one more than the greatest", g.Token, base+far+1)
		}
		wrote := 0
		for _, s := range servers {
			if v, _ := s.Do("GET", "hfr:f:"+name).(string); strings.HasPrefix(v, itoa(base+far+1)+" "+string(req.Lease)) {
				wrote++
			}
		}
		if wrote < 3 {
			t.Errorf("%d nodes know the token before the grant counts; a majority has to", wrote)
		}
		p.cutOff(t, 0)
	}
}

// Two leases that are held together, and were voted for in another order by each node, never
// have the same token.
func TestTokensOfReadersDiffer(t *testing.T) {
	t.Parallel()
	servers := testserver.RedisNodes(t, 5, "--appendonly", "no")
	base := time.Now().UnixMicro()
	const readers, rounds = 4, 50
	panels := make([]*panel, readers)
	for i := range panels {
		panels[i] = newPanel(t, servers)
		panels[i].clock = func() int64 { return base } // they all propose the same
	}
	for round := range rounds {
		tokens := make(chan fence.Token, readers)
		for _, p := range panels {
			go func() {
				g, err := p.Acquire(t.Context(), wanted("r"+itoa(int64(round)), permit(0)))
				if err != nil {
					t.Error(err)
				}
				tokens <- g.Token
			}()
		}
		seen := make(map[fence.Token]bool)
		for range readers {
			token := <-tokens
			if seen[token] {
				t.Fatalf("round %d: token %d twice", round, token)
			}
			seen[token] = true
		}
	}
}

// A client whose clock is hours ahead would push the counters away from all other clocks: it gets no votes, and breaks
// nothing. No client could get the lock until the clocks of the nodes are there.
func TestClockAhead(t *testing.T) {
	t.Parallel()
	p := three(t)
	p.take(t, wanted("n"))
	p.clock = func() int64 { return time.Now().Add(2 * time.Hour).UnixMicro() }
	_, acquire := p.Acquire(t.Context(), wanted("free"))
	_, breaks := p.Break(t.Context(), backend.BreakRequest{Name: "n"})
	for _, err := range []error{acquire, breaks} {
		if !errors.Is(err, ErrClock) || !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("%v; want ErrClock", err)
		}
	}
	p.clock = func() int64 { return time.Now().UnixMicro() }
	if _, err := p.Acquire(t.Context(), wanted("n")); !errors.Is(err, backend.ErrHeld) {
		t.Errorf("nothing was broken, and the lock is not held: %v", err)
	}
	if _, err := p.Break(t.Context(), backend.BreakRequest{Name: "n"}); err != nil {
		t.Error(err)
	}
	p.take(t, wanted("n"))
}

// A quorum leaves no room for one permit more than there are.
func TestQuorum(t *testing.T) {
	t.Parallel()
	for n := MinNodes; n <= MaxNodes; n += 2 {
		b := &Backend{nodes: make([]*node, n), majority: n/2 + 1}
		for limit := 1; limit <= 64; limit++ {
			q := b.quorum(backend.Claim{Mode: backend.Shared, Limit: limit})
			if (limit+1)*q <= n*limit {
				t.Errorf("%d nodes, limit %d: %d holders with %d votes each fit", n, limit, limit+1, q)
			}
			if q > n || q < n/2+1 {
				t.Errorf("%d nodes, limit %d: quorum %d", n, limit, q)
			}
			if q > n/2+1 && (limit+1)*(q-1) > n*limit {
				t.Errorf("%d nodes, limit %d: quorum %d is more than is needed", n, limit, q)
			}
		}
	}
}
