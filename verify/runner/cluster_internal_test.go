//go:build unix

package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/testkit/launch"
	"github.com/holdfast-io/holdfast/internal/testkit/shim"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/open"
	"github.com/holdfast-io/holdfast/verify/history"
)

// cluster has servers that a run stops and crashes. Their disks are slow at times and lose in a crash what was not
// synced, and their wall clocks jump, as far as the backends promise that locks stay exclusive. Their data is on disk,
// in a folder that is deleted with them.
type cluster struct {
	url     string
	members []*member
	tied    bool // leases end with their connections: the servers do not crash
	jumps   jumps
	dir     string

	mu     sync.Mutex
	failed error // of a shim: later behaviour of the servers is then no evidence about them
}

// member is one server. Its URL is that of a backend of its own; empty: it serves when it listens.
type member struct {
	*launch.Server

	// trace is how long operations in progress at the crash of the server may delay other
	// clients.
	trace  time.Duration
	behind time.Duration // by how much its clock was stepped back
}

// kind is what a run has to know of a kind of servers.
type kind struct {
	jumps jumps
	// parameters are those of the URLs. A new Redis grants nothing for as long as the longest lease
	// that may be held: here that time is known.
	parameters string
	tied       bool
	trace      time.Duration
	members    int                 // 0: one
	fast       bool                // its disk is the machine's
	built      map[string][]string // the programs that the repository builds
}

// kinds returns the clusters that can be started, with the names of package launch.
func kinds() map[string]kind {
	return map[string]kind{
		"redis":             {jumps: jumpsBack, parameters: "?quarantine=5s"},
		"redlock":           {jumps: jumpsBack, parameters: "?max_ttl=10s"}, // of five servers two may be down
		"etcd":              {members: 3, built: map[string][]string{"etcd": nil}},
		"zookeeper":         {members: 3, jumps: jumpsFar, parameters: "?tick=" + launch.ZooKeeperTick.String()},
		"consul":            {members: 3, parameters: "?min_ttl=" + launch.ConsulMinTTL.String(), built: map[string][]string{"consul": nil}},
		"postgres":          {jumps: jumpsBack},
		"postgres+advisory": {jumps: jumpsBack, tied: true},
		"mysql":             {jumps: jumpsBack},
		"mysql+getlock":     {jumps: jumpsFar, tied: true},
		"kubernetes":        {built: map[string][]string{"kube-apiserver": nil, "etcd": nil}},
		"holdfast":          {trace: placeTTL, fast: true, built: map[string][]string{"holdfast": nil}},
	}
}

func clusters() []string { return slices.Sorted(maps.Keys(kinds())) }

// startCluster starts the servers of a kind, and waits until they serve. They end with the test.
func startCluster(t *testing.T, name string) *cluster {
	t.Helper()
	k := kinds()[name]
	programs := maps.Clone(k.built)
	for program := range programs {
		path, err := launch.Built(t.Context(), program)
		if err != nil {
			t.Fatal(err)
		}
		programs[program] = []string{path}
	}
	c := &cluster{dir: testserver.Dir(t), tied: k.tied, jumps: k.jumps}
	g, err := launch.Kinds()[name](t.Context(), launch.Options{Dir: c.dir, Members: k.members, Programs: programs})
	if err != nil {
		t.Fatal(err)
	}
	c.url = g.URL + k.parameters
	for _, s := range g.Servers {
		if s.URL != "" {
			s.URL += k.parameters
		}
		c.members = append(c.members, &member{Server: s, trace: k.trace})
	}
	t.Cleanup(func() {
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	c.addShims(t, !k.fast)
	for _, m := range c.members {
		if err := m.Launch(); err != nil {
			t.Fatal(err)
		}
		if g.InTurn {
			if err := m.ready(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, m := range c.members {
		if err := m.ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// pids returns the processes of the servers.
func (c *cluster) pids() []int {
	var pids []int
	for _, m := range c.members {
		pids = append(pids, m.Process().Pid())
	}
	return pids
}

// ready waits until the server serves, and checks that it lives.
func (m *member) ready(ctx context.Context) error {
	err := m.Ready(ctx)
	if err == nil {
		// A try may take longer than Await gives it: serves has a patience of its own.
		err = m.Process().Await(ctx, launch.StartTimeout, func(context.Context) error { return m.serves(ctx) })
	}
	if err != nil {
		return fmt.Errorf("%s does not serve: %w", m.Name, err)
	}
	return nil
}

// serves requests a lock from the server, if it is a backend by itself: many servers listen
// long before they can serve.
func (m *member) serves(ctx context.Context) error {
	if m.URL == "" {
		return nil
	}
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b, err := open.URL(ctx, m.URL, open.Options{})
	if err != nil {
		return err
	}
	locks, err := holdfast.New(b, holdfast.Config{TTL: max(2*time.Second, b.Capabilities().MinTTL), Owner: "verify", Timeout: patience})
	if err == nil {
		err = locks.Do(ctx, "holdfast-verify-up", func(context.Context, *holdfast.Lock) error { return nil })
		_ = locks.Close(ctx) // the rest ends with its TTL
	}
	_ = b.Close()
	return err
}

// revive starts a server that has crashed, and waits until it serves. Remains of the former
// process may prevent its start for a moment.
func (m *member) revive(ctx context.Context) error {
	end := time.Now().Add(launch.StartTimeout)
	for {
		err := m.Launch()
		if err == nil {
			err = m.ready(ctx)
		}
		if !errors.Is(err, launch.ErrEnded) || time.Now().After(end) || !retry.Pause(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// end kills the servers, and waits until no disk writes any more.
func (c *cluster) end() error {
	var err error
	for _, m := range slices.Backward(c.members) {
		err = errors.Join(err, m.Kill())
	}
	for _, m := range c.members {
		if m.Disk != nil {
			err = errors.Join(err, m.Disk.Settle())
		}
	}
	return errors.Join(err, c.failure())
}

// The faults of servers.
const (
	serverStops   fault = "server stopped"
	serverCrashes fault = "server crashed"
	// One server after the other is stopped, until none is left, and they continue in another
	// order.
	serversInTurn fault = "servers stopped in turn"
	diskIsSlow    fault = "slow disk"               // of one server, or of all
	clockJumps    fault = "clock of a server jumps" // as far as the backend promises to survive it
)

func (c *cluster) faults(p Profile) []fault {
	if p == Jepsen {
		return nil
	}
	all := []fault{serverStops}
	if slices.ContainsFunc(c.members, func(m *member) bool { return m.Disk != nil }) {
		all = append(all, diskIsSlow)
	}
	if p == Gentle {
		return all
	}
	if !c.tied {
		all = append(all, serverCrashes)
	}
	if len(c.members) > 2 {
		all = append(all, serversInTurn)
	}
	if c.jumps != jumpsNone {
		all = append(all, clockJumps)
	}
	return all
}

// disturb injects one fault after the other, which the seed decides, until ctx ends.
func (c *cluster) disturb(ctx context.Context, r *run) {
	if err := c.checkShims(); err != nil {
		r.fail(err)
		return
	}
	chance := rand.New(rand.NewPCG(r.cfg.Seed, 0x5e7))
	kinds := c.faults(r.cfg.Profile)
	if len(kinds) == 0 {
		return
	}
	deal := deck(chance, kinds)
	pause := func() bool { return retry.Pause(ctx, r.measure.every+time.Duration(chance.Int64N(int64(r.ttl)))) }
	for pause() && r.failed() == nil {
		f := planned{fault: deal()}
		if f.fault != diskIsSlow && f.fault != clockJumps && r.cfg.Profile != Gentle {
			f.lasts = r.ttl + time.Duration(chance.Int64N(int64(r.ttl*3/2)))
		} else {
			f.lasts = f.length(chance, r.cfg.Profile, r.ttl)
		}
		c.inject(ctx, r, chance, f)
	}
}

// inject stops or crashes one server, or stops all in turn, slows disks, or sets a clock. The
// event is for all workers. It ends when the servers serve again, which can take an election.
func (c *cluster) inject(ctx context.Context, r *run, chance *rand.Rand, f planned) {
	targets := c.victims(chance, f.fault)
	if len(targets) == 0 {
		return
	}
	text := string(f.fault)
	if len(targets) == 1 {
		text = fmt.Sprintf("%s, %d", f.fault, slices.Index(c.members, targets[0])+1)
	}
	r.tell(history.Event{Kind: history.KindFault, Text: text})
	var err error
	switch f.fault { //nolint:exhaustive // the others are not of servers
	case serverStops:
		err = targets[0].Process().Stop()
		retry.Pause(ctx, f.lasts)
		err = errors.Join(err, targets[0].Process().Cont())
	case serverCrashes:
		err = targets[0].powerFailure(ctx)
		retry.Pause(ctx, r.ttl/4)
		if err == nil {
			err = targets[0].revive(context.WithoutCancel(ctx))
		}
	case serversInTurn:
		err = stopInTurn(ctx, chance, targets, f.lasts)
	case diskIsSlow:
		slowDisks(ctx, targets, f.lasts)
	case clockJumps:
		err = c.jump(ctx, r, chance, targets[0], f.lasts)
	}
	err = errors.Join(err, c.failure())
	for _, m := range targets {
		if err == nil {
			err = m.ready(context.WithoutCancel(ctx))
		}
	}
	if err != nil {
		r.fail(err)
	}
	if f.fault == serverCrashes {
		retry.Pause(context.WithoutCancel(ctx), targets[0].trace)
	}
	r.tell(history.Event{Kind: history.KindHeal, Text: text})
}

// victims returns the members that a fault is for: all, or a random one, of those that can have
// it. There may be none.
func (c *cluster) victims(chance *rand.Rand, f fault) []*member {
	able := c.members
	switch f { //nolint:exhaustive // every server can have the others
	case serversInTurn:
		return able
	case diskIsSlow:
		able = slices.DeleteFunc(slices.Clone(able), func(m *member) bool { return m.Disk == nil })
		if chance.IntN(2) == 0 {
			return able
		}
	case clockJumps:
		able = slices.DeleteFunc(slices.Clone(able), func(m *member) bool {
			return m.Clock == nil || c.jumps == jumpsBack && m.behind+stepBack > mostBack
		})
	}
	if len(able) == 0 {
		return nil
	}
	n := chance.IntN(len(able))
	return able[n : n+1]
}

// stopInTurn stops one server after the other, and continues them in another order: for a while
// clients reach only a minority, then no server.
func stopInTurn(ctx context.Context, chance *rand.Rand, members []*member, lasts time.Duration) error {
	var err error
	step := lasts / time.Duration(len(members))
	for _, i := range chance.Perm(len(members)) {
		err = errors.Join(err, members[i].Process().Stop())
		retry.Pause(ctx, step)
	}
	for _, i := range chance.Perm(len(members)) {
		err = errors.Join(err, members[i].Process().Cont())
		retry.Pause(ctx, step)
	}
	return err
}

const (
	// slowSync is the duration of a sync of a log on a slow disk, such as a worn disk or one that
	// a neighbour uses. A client learns of a commit in less time, so a power failure finds changes
	// that clients could see and that are on no disk. A renewal, which waits for a few syncs,
	// takes a small part of the shortest TTL of one second.
	slowSync = 50 * time.Millisecond
	// stepBack is by how much a clock that measures leases is stepped back, and mostBack is by
	// how much in all. It is never corrected: that would end leases early, which no store
	// promises to survive. Tokens of Redis and of PostgreSQL's advisory locks begin at the
	// clock when the last token is not known, and a lease that is not renewed ends later by the
	// same amount: both stay far below the allowances of the backends and of the referee.
	stepBack = 250 * time.Millisecond
	mostBack = time.Second
	// farJump is by how much a clock that measures nothing jumps: more than any lease.
	farJump = time.Hour
)

// jumps is how the clock of a server may jump while locks stay exclusive: see
// docs/guarantees.md.
type jumps int

const (
	jumpsNone jumps = iota // written in Go: the clock cannot be set
	jumpsBack              // leases are measured with it, so it is only stepped back
	jumpsFar               // nothing is measured with it
)

// addShims gives the members slow disks and clocks.
func (c *cluster) addShims(t *testing.T, disks bool) {
	t.Helper()
	dir := filepath.Join(c.dir, "shims")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755)); err != nil { // the servers read it, whatever the umask is
		t.Fatal(err)
	}
	if disks {
		if err := c.addDisks(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.addClocks(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) addDisks(ctx context.Context, dir string) error {
	launcher, err := shim.NewLauncher(ctx, dir)
	if err != nil {
		return err
	}
	if err := launcher.Try(ctx, c.dir, launch.Attributes(c.members[0].Account())); err != nil {
		return err
	}
	// A server waits for an answer of this process with each sync. While the referee and the
	// relays keep all processors of the Go scheduler busy, a goroutine that returns from the
	// kernel waits for one for up to 10 ms. With more processors the kernel schedules them,
	// which is quicker. The setting remains: other servers of this process may run.
	const processors = 8
	if runtime.GOMAXPROCS(0) < processors {
		runtime.GOMAXPROCS(processors)
	}
	for _, m := range c.members {
		if !m.Diskless {
			m.Disk = launcher.Disk(c.fail)
		}
	}
	return nil
}

func (c *cluster) addClocks(ctx context.Context, dir string) error {
	if c.jumps == jumpsNone {
		return nil
	}
	clocks, err := shim.NewClocks(ctx, dir)
	if err != nil {
		return err
	}
	if err := clocks.Try(ctx, launch.Attributes(c.members[0].Account())); err != nil {
		return err
	}
	for i, m := range c.members {
		if m.Clock, err = clocks.Clock(fmt.Sprintf("m%d", i+1)); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = errors.Join(c.failed, err)
}

// failure returns the failure of the shims since the last call.
func (c *cluster) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.failed
	c.failed = nil
	return err
}

// checkShims returns an error if servers that have granted locks do not use their disks and clocks.
func (c *cluster) checkShims() error {
	for _, m := range c.members {
		if m.Disk != nil && m.Disk.Syncs() == 0 {
			return fmt.Errorf("%s wrote no known log file", m.Name)
		}
		if m.Clock != nil && !m.Clock.In(m.Process().Pid()) {
			return fmt.Errorf("%s does not take its time from the C library", m.Name)
		}
	}
	return nil
}

// slowDisks makes the syncs of servers slow for the duration of a fault.
func slowDisks(ctx context.Context, targets []*member, lasts time.Duration) {
	for _, m := range targets {
		m.Disk.Slow(slowSync)
	}
	retry.Pause(ctx, lasts)
	for _, m := range targets {
		m.Disk.Fast()
	}
}

// powerFailure kills a server. Its disk, if it has one, is slow before that, so that there is
// data that is not synced, and fast again when the server is started.
func (m *member) powerFailure(ctx context.Context) error {
	if m.Disk == nil {
		return m.Kill()
	}
	m.Disk.Slow(slowSync)
	retry.Pause(ctx, 10*slowSync) // some syncs, each with writes after it
	defer m.Disk.Fast()
	return m.Kill()
}

// jump makes the clock of a server jump. A clock that measures leases is stepped back for good,
// and the fault lasts until every lease from before has ended, which the step delayed.
func (c *cluster) jump(ctx context.Context, r *run, chance *rand.Rand, m *member, lasts time.Duration) error {
	if c.jumps == jumpsBack {
		m.behind += stepBack
		if err := m.Clock.Set(-m.behind); err != nil {
			return err
		}
		retry.Pause(context.WithoutCancel(ctx), r.slack()+stepBack)
		return nil
	}
	ahead := farJump
	if chance.IntN(2) == 0 {
		ahead = -ahead
	}
	if err := m.Clock.Set(ahead); err != nil {
		return err
	}
	retry.Pause(ctx, lasts)
	return m.Clock.Set(0)
}
