//go:build unix

package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-io/holdfast/internal/launch"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/shim"
)

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

// shims are the shims between the servers and the machine.
type shims struct {
	jumps jumps
	// noDisk and noClock are why there is no slow disk and no clock; nil if there is one.
	noDisk, noClock error

	mu     sync.Mutex
	failed error
}

// errNoLog is for servers whose logs the slow disk does not recognise.
var errNoLog = errors.New("the servers wrote no known log file")

// errOwnClock is for servers that do not follow the clock.
var errOwnClock = errors.New("the servers do not take their time from the C library")

// addShims gives the members slow disks and clocks, if the machine supports them.
func (c *cluster) addShims(ctx context.Context) error {
	dir := filepath.Join(c.dir, "shims")
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // the servers read it
		return fmt.Errorf("verify: a folder for the servers: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // also if the umask forbids that
		return fmt.Errorf("verify: a folder for the servers: %w", err)
	}
	c.shims.noDisk = c.addDisks(ctx, dir)
	c.shims.noClock = c.addClocks(ctx, dir)
	for _, err := range []error{c.shims.noDisk, c.shims.noClock} {
		if err != nil && !errors.Is(err, shim.ErrUnsupported) {
			return fmt.Errorf("verify: a shim for the servers: %w", err)
		}
	}
	return nil
}

// attributes returns those of the servers' processes.
func (c *cluster) attributes() *syscall.SysProcAttr {
	return launch.Attributes(c.members[0].Account())
}

func (c *cluster) addDisks(ctx context.Context, dir string) error {
	launcher, err := shim.NewLauncher(ctx, dir)
	if err != nil {
		return err
	}
	if err := launcher.Try(ctx, c.dir, c.attributes()); err != nil {
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
			m.Disk = launcher.Disk(c.shims.fail)
		}
	}
	return nil
}

func (c *cluster) addClocks(ctx context.Context, dir string) error {
	if c.shims.jumps == jumpsNone {
		return fmt.Errorf("%w: the servers are written in Go and ask the kernel for the time", shim.ErrUnsupported)
	}
	clocks, err := shim.NewClocks(ctx, dir)
	if err != nil {
		return err
	}
	if err := clocks.Try(ctx, c.attributes()); err != nil {
		return err
	}
	for i, m := range c.members {
		if m.Clock, err = clocks.Clock(fmt.Sprintf("m%d", i+1)); err != nil {
			return err
		}
	}
	return nil
}

// fail records that a shim failed: later behaviour of the servers is then no evidence about
// them.
func (s *shims) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = errors.Join(s.failed, err)
}

// failure returns the failure of the shims since the last call.
func (s *shims) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.failed
	s.failed = nil
	return err
}

// checkShims checks whether servers that have granted locks use their disks and clocks.
func (c *cluster) checkShims() {
	for _, m := range c.members {
		if m.Disk != nil && m.Disk.Syncs() == 0 {
			c.shims.noDisk = errNoLog
		}
		if m.Clock != nil && !m.Clock.In(m.Process().Pid()) {
			c.shims.noClock = errOwnClock
		}
	}
}

// settleDisks waits until no disk writes any more. All servers must have ended.
func (c *cluster) settleDisks() error {
	var err error
	for _, m := range c.members {
		if m.Disk != nil {
			err = errors.Join(err, m.Disk.Settle())
		}
	}
	return errors.Join(err, c.shims.failure())
}

// victims returns the members that a fault is for: all, or a random one, of those that can have
// it. There may be none.
func (c *cluster) victims(f planned) []*member {
	able := c.members
	switch f.fault { //nolint:exhaustive // every server can have the others
	case faultServersTurn:
		return able
	case faultSlowDisk:
		able = slices.DeleteFunc(slices.Clone(able), func(m *member) bool { return m.Disk == nil })
		if len(able) > 0 && f.coin() {
			return able
		}
	case faultClock:
		able = slices.DeleteFunc(slices.Clone(able), func(m *member) bool {
			return m.Clock == nil || c.shims.jumps == jumpsBack && m.behind+stepBack > mostBack
		})
	}
	if len(able) == 0 {
		return nil
	}
	n := int(f.at/time.Millisecond) % len(able)
	return able[n : n+1]
}

// slowDisks makes the syncs of servers slow for the duration of a fault.
func slowDisks(ctx context.Context, targets []*member, f planned) {
	for _, m := range targets {
		m.Disk.Slow(slowSync)
	}
	retry.Pause(ctx, f.lasts)
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
	retry.Pause(ctx, 10*slowSync) //nolint:mnd // some syncs, each with writes after it
	defer m.Disk.Fast()
	return m.Kill()
}

// jump makes the clock of a server jump. A clock that measures leases is stepped back for good,
// and the fault lasts until every lease from before has ended, which the step delayed.
func (r *run) jump(ctx context.Context, m *member, f planned) error {
	if r.servers.shims.jumps == jumpsBack {
		m.behind += stepBack
		if err := m.Clock.Set(-m.behind); err != nil {
			return err
		}
		retry.Pause(context.WithoutCancel(ctx), r.slack()+stepBack)
		return nil
	}
	ahead := farJump
	if f.coin() {
		ahead = -ahead
	}
	if err := m.Clock.Set(ahead); err != nil {
		return err
	}
	retry.Pause(ctx, f.lasts)
	return m.Clock.Set(0)
}

// untestedShims returns what a run leaves out of slow disks and of clocks that jump.
func (r *run) untestedShims() []string {
	var out []string
	all := r.able.faults(r.cfg.Profile)
	if r.servers != nil && !slices.Contains(all, faultSlowDisk) {
		out = append(out, "slow disks, and what a failure of the power takes from the servers: "+r.whyNot(r.servers.shims.noDisk))
	}
	switch {
	case r.servers == nil:
		out = append(out, "clocks that jump")
	case !slices.Contains(all, faultClock):
		out = append(out, "clocks that jump: "+r.whyNot(r.servers.shims.noClock))
	case r.servers.shims.jumps == jumpsBack:
		out = append(out, fmt.Sprintf("clocks that jump, but for those of the servers, which are stepped back by %s at most", mostBack))
	default:
		out = append(out, "clocks that jump, but for that of one server at a time")
	}
	return out
}

// whyNot returns why a fault is left out: because of the machine, or else of the profile.
func (r *run) whyNot(err error) string {
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("the profile is %s", r.cfg.Profile)
}
