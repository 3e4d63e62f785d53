package e2e_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/open"
)

const partitionTTL = 15 * time.Second // a renewal is in time on a machine that stands still for a while

// ensemble is a cluster of which one server leads, as its clients and its operator see it. One test at a time has it.
type ensemble struct {
	turn sync.Mutex

	urls      []string // of each server alone
	processes []*testserver.Process
	leader    func(t *testing.T) int // -1: there is none
	cut       func(server int)       // nil: it can only be stopped
	heal      func()
}

// ensembles are those that the tests share, each started on first use.
var ensembles = map[string]func() *ensemble{
	"etcd": testserver.Shared(func(tb testing.TB) *ensemble {
		tb.Helper()
		e, members := etcdOfThree(tb, false)
		for _, m := range members {
			e.urls = append(e.urls, "etcd://"+m.Addr())
		}
		return e
	}),
	// An API server beside each member of etcd, which talks to that one alone.
	"kubernetes": testserver.Shared(func(tb testing.TB) *ensemble {
		tb.Helper()
		e, members := etcdOfThree(tb, true)
		for _, m := range members {
			s := testserver.KubernetesOn(tb, m)
			e.urls = append(e.urls, "kubernetes://default?kubeconfig="+s.Kubeconfig(s.Addr()))
		}
		return e
	}),
	"zookeeper": testserver.Shared(func(tb testing.TB) *ensemble {
		tb.Helper()
		servers := testserver.StartZooKeeper(tb, 3)
		e := &ensemble{leader: leading(servers)}
		for _, s := range servers {
			e.urls, e.processes = append(e.urls, "zookeeper://"+s.Addr()+"?tick=500ms&max_session="+testserver.ZooKeeperMaxSession.String()), append(e.processes, s.Process())
		}
		return e
	}),
	"consul": testserver.Shared(func(tb testing.TB) *ensemble {
		tb.Helper()
		servers := testserver.StartConsul(tb, 3)
		e := &ensemble{leader: leading(servers)}
		for _, s := range servers {
			e.urls, e.processes = append(e.urls, "consul://"+s.Addr()+"?min_ttl=500ms"), append(e.processes, s.Process())
		}
		return e
	}),
}

// onEnsembles runs a test on each ensemble.
func onEnsembles(t *testing.T, test func(*testing.T, *ensemble)) {
	t.Helper()
	leasetest.Slow(t)
	sideBySide(t, ensembles, func(t *testing.T, _ string, start func() *ensemble) { //nolint:thelper // it is the test
		e := start()
		e.turn.Lock()
		defer e.turn.Unlock()
		defer func() { // also when the test failed
			for _, p := range e.processes {
				p.Cont()
			}
			if e.heal != nil {
				e.heal()
			}
		}()
		test(t, e)
	})
}

// etcdOfThree is an etcd whose members can be cut off from each other.
func etcdOfThree(tb testing.TB, newest bool) (*ensemble, []*testserver.Etcd) {
	tb.Helper()
	b := newBoard(tb)
	var peers []string
	members := testserver.StartEtcd(tb, testserver.EtcdOptions{Newest: newest, Members: 3, Tick: 100, NoFsync: true, Reach: func(listens string) string {
		peers = append(peers, listens)
		return b.reach(listens)
	}})
	e := &ensemble{cut: func(i int) { b.cut(members[i].Process().Pid(), peers[i]) }, heal: b.heal}
	for _, m := range members {
		e.processes = append(e.processes, m.Process())
	}
	e.leader = leading(members)
	return e, members
}

// leading finds the server that reports that it leads.
func leading[S interface{ Leads() bool }](servers []S) func(t *testing.T) int {
	return func(*testing.T) int {
		for i, s := range servers {
			if s.Leads() {
				return i
			}
		}
		return -1
	}
}

func (e *ensemble) client(t *testing.T, server int) *holdfast.Client {
	t.Helper()
	b, err := open.URL(t.Context(), e.urls[server], open.Options{})
	return client(t, opened(t, b, err), holdfast.Config{TTL: partitionTTL, Timeout: partitionTTL, Owner: e.urls[server]})
}

// sides finds the leader, and returns a client of the leader alone and one of another server.
func (e *ensemble) sides(t *testing.T) (int, *holdfast.Client, *holdfast.Client) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); ; <-tick.C {
		if n := e.leader(t); n >= 0 {
			return n, e.client(t, n), e.client(t, (n+1)%len(e.urls))
		}
		if time.Now().After(end) {
			t.Fatal("no candidate leads")
		}
	}
}

// F15, F16: the leader is cut off from the others, and not from a client that holds a lock. The
// holder is told at its deadline, and the minority grants it nothing. The next waiter has the
// lock from the majority after that, with a greater token; and when the leader is back, both
// sides see the same. etcd is cut; the others are stopped, which is the same for every server
// except the leader itself: it resumes and believes that it still leads.
func TestLeaderCutOff(t *testing.T) {
	t.Parallel()
	onEnsembles(t, func(t *testing.T, e *ensemble) { //nolint:thelper // it is the test
		n, minority, majority := e.sides(t)
		lock, err := minority.Acquire(t.Context(), t.Name())
		if err != nil {
			t.Fatal(err)
		}
		got := waitFor(t, majority, t.Name())
		renewed(t, lock)
		lag := lateness(t)
		if e.cut != nil {
			e.cut(n)
		} else {
			e.processes[n].Stop()
		}
		ended := told(t, lock, lag)
		r := <-got
		follows(t, r, lock, ended)
		for _, name := range []string{t.Name(), t.Name() + "/free"} { // a minority grants nothing
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if l, err := minority.TryAcquire(ctx, name); err == nil {
				t.Errorf("the minority grants %q with token %d", name, l.Token())
			}
			cancel()
		}
		if e.cut != nil {
			e.heal()
		} else {
			e.processes[n].Cont()
		}
		handBack(t, minority, r.lock)
	})
}

// F16, from the other side: the leader lives and reaches the holder, and all others are gone.
// The leader cannot know what they do, so its answers are worth nothing: the holder is told.
func TestFollowersGone(t *testing.T) {
	t.Parallel()
	onEnsembles(t, func(t *testing.T, e *ensemble) { //nolint:thelper // it is the test
		n, minority, majority := e.sides(t)
		lock, err := minority.Acquire(t.Context(), t.Name())
		if err != nil {
			t.Fatal(err)
		}
		renewed(t, lock)
		lag := lateness(t)
		others := func(do func(*testserver.Process)) {
			for i, p := range e.processes {
				if i != n {
					do(p)
				}
			}
		}
		others((*testserver.Process).Stop)
		told(t, lock, lag)
		if l, err := minority.TryAcquire(t.Context(), t.Name()+"/free"); err == nil {
			t.Errorf("the leader alone grants a lock with token %d", l.Token())
		}
		others((*testserver.Process).Cont)
		r := <-waitFor(t, majority, t.Name())
		if r.err != nil || r.lock.Token() <= lock.Token() {
			t.Fatalf("after all were back: %v, %v", r.lock, r.err)
		}
		handBack(t, minority, r.lock)
	})
}

// handBack has a client request a lock that another holds and then releases.
func handBack(t *testing.T, c *holdfast.Client, held *holdfast.Lock) {
	t.Helper()
	got := waitFor(t, c, held.Name())
	until(t, "it waits, and does not have it", func() bool {
		select {
		case r := <-got:
			t.Fatalf("it has what another has: %+v", r)
		default:
		}
		info, err := c.Inspect(t.Context(), held.Name())
		return err == nil && len(info.Holders) == 1 && info.Holders[0].Token == held.Token() && len(info.Waiters) == 1
	})
	if err := held.Release(t.Context()); err != nil {
		t.Error(err)
	}
	r := <-got
	if r.err != nil || r.lock.Token() <= held.Token() {
		t.Fatalf("after the release: %v, %v", r.lock, r.err)
	}
	if err := r.lock.Release(t.Context()); err != nil && !strings.Contains(err.Error(), "unavailable") {
		t.Error(err)
	}
}
