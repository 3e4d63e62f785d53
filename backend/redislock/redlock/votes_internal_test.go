package redlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// breaking is a node that is cut off from the first request with an operation on.
type breaking struct {
	link
	verb    string
	arrives bool // that request is executed, and its answer is lost
	gone    atomic.Bool
}

func (l *breaking) run(ctx context.Context, load bool, key string, a []string) ([]program.Reply, error) {
	if !l.gone.Load() && slices.Contains(a, l.verb) {
		l.gone.Store(true)
		if l.arrives {
			_, _ = l.link.run(ctx, load, key, a)
		}
	}
	if l.gone.Load() {
		return nil, errCut
	}
	return l.link.run(ctx, load, key, a)
}

// guarded returns a panel that keeps the quarantine, on servers whose markers are from long
// ago.
func guarded(t *testing.T, n int) (*panel, []*testserver.RedisServer) {
	t.Helper()
	servers := testserver.RedisNodes(t, n, "--appendonly", "no")
	for _, s := range servers {
		_, rest, _ := strings.Cut(s.Info("server"), "run_id:")
		run, _, _ := strings.Cut(rest, "\r")
		s.Do("SET", "hfr:m", "hfr2 1 1 "+run+" 1")
	}
	return panelOf(t, servers, "on"), servers
}

// told runs one operation on one node.
func (p *panel) told(t *testing.T, i int, r request) []program.Reply {
	t.Helper()
	answers := make(chan []program.Reply, 1)
	p.nodes[i].submit(&op{request: r, reply: func(list []program.Reply, err error) {
		if err != nil {
			t.Errorf("node %d: %v", i, err)
		}
		answers <- list
	}})
	return <-answers
}

// voteFor returns the request for a vote that an attempt of its own gets.
func (p *panel) voteFor(lease backend.LeaseID, ttl string) request {
	return request{
		verb: opAcquire, lock: "n", args: []string{"n", string(lease), itoa(p.attempt(0)), itoa(p.clock())},
		terms: terms{ttl: ttl, mode: "x", permits: "1", limit: "0"},
	}
}

// A vote that was not returned in one round, because the node broke down, and a vote whose
// answer is lost: together they are a quorum, and no later round makes that undone.
func TestMayHoldOverRounds(t *testing.T) {
	t.Parallel()
	p, servers := guarded(t, 3)
	p.told(t, 2, p.voteFor("2222222222222222", "60000"))
	p.nodes[0].link = &breaking{link: p.nodes[0].link, verb: opBack}
	req := wanted("n")
	p.nodes[1].link = &overtaken{&breaking{link: p.nodes[1].link, verb: opAcquire, arrives: true}, opAcquire, sync.OnceFunc(func() {
		leasetest.Eventually(t, "the first node has voted", func() bool { return p.told(t, 0, one("has", "n", string(req.Lease)))[0].N == 1 })
	})}
	_, err := p.Acquire(t.Context(), req)
	info, err2 := newPanel(t, servers).Inspect(t.Context(), "n")
	if err2 != nil || len(info.Holders) != 1 || info.Holders[0].Lease != req.Lease {
		t.Errorf("inspect: %+v, %v; the lease has a quorum", info, err2)
	}
	if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold {
		t.Errorf("acquire: %v; want MayHold", err)
	}
}

// Votes that were kept for the next round are returned to a node that is down by then, too.
func TestKeptVotesAreGivenBack(t *testing.T) {
	t.Parallel()
	p, _ := guarded(t, 3)
	a := &acquisition{b: p.Backend, quorum: 2, pause: time.Millisecond, req: wanted("n", func(r *backend.AcquireRequest) { r.Lease = "0000000000000000" })}
	a.claim = a.req.Claim()
	for i, lease := range []backend.LeaseID{"1111111111111111", "2222222222222222"} {
		p.told(t, i+1, p.voteFor(lease, "60000")) // votes are split three ways
	}
	leasetest.Eventually(t, "votes are kept", func() bool { // where all nodes answer in time
		return a.round(t.Context()).kind == split && a.keeps > 0
	})
	p.cutOff(t, 1)
	if _, err := p.Inspect(t.Context(), "n"); err != nil { // the node is down from here on
		t.Fatal(err)
	}
	if v := a.round(t.Context()); v.kind == granted || a.attempt != 0 {
		t.Fatalf("second round: %+v, attempt %d", v, a.attempt)
	}
	p.cutOff(t, 0)
	leasetest.Eventually(t, "the vote is returned", func() bool {
		return p.told(t, 0, one("has", "n", "0000000000000000"))[0].N == 0
	})
}

// One of five nodes is restarted with data that is a moment old: a vote that was returned
// since is there again, while other leases have all permits. It does not count.
func TestRestoredVote(t *testing.T) {
	t.Parallel()
	p, servers := guarded(t, 5)
	late := wanted("n", permit(3))
	ask := request{
		verb: opAcquire, lock: "n", args: []string{"n", string(late.Lease), itoa(p.attempt(0)), itoa(p.clock())},
		terms: terms{ttl: "120000", mode: "s", permits: "1", limit: "3"},
	}
	if r := p.told(t, 0, ask); r[0].S != "G" {
		t.Fatal(r)
	}
	servers[0].Do("SAVE") // what is on the disk
	p.told(t, 0, one(opBack, "n", string(late.Lease), ask.args[2], "0"))
	for _, away := range []int{0b10000, 0b01000, 0b00100} {
		p.cutOff(t, away)
		p.take(t, wanted("n", permit(3)))
	}
	servers[0].Restart()
	p.cutOff(t, 1)
	_, _ = p.Inspect(t.Context(), "n") // the node is down
	p.cutOff(t, 0)
	if r := p.told(t, 0, ask); r[0].S != "Q" || r[2].N != 1 {
		t.Errorf("the node answers %v", r)
	}
	if g, err := p.Acquire(t.Context(), late); err == nil {
		t.Errorf("a fourth holder of three permits: %+v", g)
	}
}

// A lease is broken on two of three nodes, and another one granted. One of the two is restarted
// without these writes: the first lease is not renewed, then or later.
func TestRestoredVoteIsNotRenewed(t *testing.T) {
	t.Parallel()
	for _, mode := range []backend.Mode{backend.Exclusive, backend.Shared} { // the two forms of a record
		p, servers := guarded(t, 3)
		req := wanted("n", func(r *backend.AcquireRequest) { r.Mode = mode })
		p.take(t, req)
		leasetest.Eventually(t, "all nodes have voted", func() bool {
			votes := int64(0)
			for i := range servers {
				votes += p.told(t, i, one("has", "n", string(req.Lease)))[0].N
			}
			return votes == 3
		})
		servers[1].Do("SAVE")
		p.cutOff(t, 1)
		if _, err := p.Break(t.Context(), backend.BreakRequest{Name: "n"}); err != nil {
			t.Fatal(err)
		}
		p.take(t, wanted("n"))
		p.cutOff(t, 0)
		servers[1].Restart()
		p.cutOff(t, 2)
		_, _ = p.Inspect(t.Context(), "n")
		p.cutOff(t, 0)
		if err := p.renew(t, req, time.Minute); !errors.Is(err, backend.ErrLost) {
			t.Errorf("renewal of the broken lease: %v; want ErrLost", err)
		}
	}
}

// The three holders of a semaphore have their votes on other nodes each, so that some nodes have
// a permit left. The lock is held nevertheless, and no client is told that votes are split.
func TestHoldersOnOtherNodes(t *testing.T) {
	t.Parallel()
	p, _ := guarded(t, 5)
	for _, away := range []int{0b10000, 0b01000, 0b00100} {
		p.cutOff(t, away)
		p.take(t, wanted("n", permit(3)))
	}
	p.cutOff(t, 0)
	_, err := p.Acquire(t.Context(), wanted("n", permit(3)))
	if no, ok := errors.AsType[*backend.HeldError](err); !ok || len(no.Holders) != 3 {
		t.Errorf("acquire: %v; want the three holders", err)
	}
}

// overtaken is a node that executes something else right before the first request with an operation.
type overtaken struct {
	link
	verb string
	by   func()
}

func (l *overtaken) run(ctx context.Context, load bool, key string, a []string) ([]program.Reply, error) {
	if slices.Contains(a, l.verb) {
		l.by()
	}
	return l.link.run(ctx, load, key, a)
}

// A holder whose release finds a majority of its votes has released the lock, also if a break that had seen it finds the
// rest: it is no victim of the break.
func TestBreakBesideARelease(t *testing.T) {
	t.Parallel()
	servers := testserver.RedisNodes(t, 3, "--appendonly", "no")
	p, holder := newPanel(t, servers), newPanel(t, servers)
	lease := backend.NewLeaseID()
	for i, n := range p.nodes {
		holder.told(t, i, holder.voteFor(lease, "60000"))
		if i < p.majority {
			n.link = &overtaken{n.link, "break", sync.OnceFunc(func() {
				holder.told(t, i, request{verb: opRelease, lock: "n", args: []string{"n", string(lease)}, terms: terms{abandon: flag(false)}})
			})}
		}
	}
	res, err := p.Break(t.Context(), backend.BreakRequest{Name: "n"})
	if err != nil || len(res.Broken) != 0 {
		t.Errorf("%+v, %v; want that no holder lost the lock", res, err)
	}
}

// Where a node does not answer, an exclusive and a shared lease may each be held. The limit is 1 then, whichever of them
// comes first.
func TestLimitOfHoldersInDoubt(t *testing.T) {
	t.Parallel()
	b := &Backend{nodes: make([]*node, 3), majority: 2}
	alone := vote{Holder: backend.Holder{Lease: "exclusive", Permits: 1}}
	reads := vote{Holder: backend.Holder{Lease: "shared", Mode: backend.Shared, Permits: 1}}
	s := &state{votes: [][]vote{{alone}, {reads}, nil}}
	for range 100 { // the votes are counted in a map, which has no order
		if info := b.describe("n", s, 1); len(info.Holders) != 2 || info.Limit != 1 {
			t.Fatalf("%d holders, limit %d; want 2, of limit 1", len(info.Holders), info.Limit)
		}
	}
}
