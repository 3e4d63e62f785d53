//go:build unix

package runner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/internal/launch"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/shim"
	"github.com/holdfast-io/holdfast/internal/testserver"
	"github.com/holdfast-io/holdfast/open"
)

// shimmedCluster starts servers, which must have the shims that the test machine supports.
func shimmedCluster(t *testing.T, kind string) *cluster {
	t.Helper()
	c, err := startCluster(t.Context(), kind, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// took returns how long an acquire of a lock of the cluster takes.
func took(t *testing.T, locks *holdfast.Client, name string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patientStart)
	defer cancel()
	begun := time.Now()
	lock, err := locks.Acquire(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	d := time.Since(begun)
	if err := lock.Release(ctx); err != nil {
		t.Fatal(err)
	}
	return d
}

// Every kind of server has its logs on the disk, and a slow disk slows its locks.
func TestDisksOfServersAreSlow(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"redis", "etcd", "postgres", "mysql"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := shimmedCluster(t, kind)
			b, err := open.URL(t.Context(), c.url, open.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			locks, err := holdfast.New(b, holdfast.Config{TTL: 10 * time.Second, Owner: "test"})
			if err != nil {
				t.Fatal(err)
			}
			took(t, locks, "warm")
			if c.checkShims(); c.shims.noDisk != nil {
				t.Fatal(c.shims.noDisk)
			}
			for _, m := range c.members {
				m.Disk.Slow(slowSync)
			}
			if d := took(t, locks, "slow"); d < slowSync {
				t.Errorf("a lock took %s, and each sync %s", d, slowSync)
			}
			for _, m := range c.members {
				m.Disk.Fast()
			}
			if err := locks.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A crash is a power failure: data that a server did not sync is lost, and data that it synced
// is not.
func TestCrashLosesWhatIsNotSynced(t *testing.T) {
	t.Parallel()
	for policy, keeps := range map[string]bool{"always": true, "no": false} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			c := shimmedCluster(t, "redis")
			m := c.members[0]
			// The disk knows a log from its first sync on.
			for _, command := range []string{"SET b 7", "CONFIG SET appendfsync " + policy, "SET a 7"} {
				if got := ask(t, m, command); got[0] != "+OK" {
					t.Fatalf("%s: %q", command, got)
				}
			}
			if err := errors.Join(m.Kill(), m.revive(t.Context())); err != nil {
				t.Fatal(err)
			}
			got := ask(t, m, "EXISTS a")
			for strings.HasPrefix(got[0], "-LOADING") && retry.Pause(t.Context(), lookEvery) {
				got = ask(t, m, "EXISTS a")
			}
			if got[0] == ":1" != keeps {
				t.Errorf("after the crash: %q", got)
			}
		})
	}
}

// ask sends a Redis one command and returns the lines of the answer.
func ask(t *testing.T, m *member, command string) []string {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: time.Minute}).DialContext(t.Context(), "tcp", m.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := fmt.Fprintf(conn, "%s\r\n", command); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 1<<10)
	n, err := conn.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(line[:n]), "\r\n")
}

// A clock that measures leases is only ever stepped back, by a bounded amount; another one
// jumps far, and returns.
func TestClocksOfServersJump(t *testing.T) {
	t.Parallel()
	c := shimmedCluster(t, "redis")
	m := c.members[0]
	if c.checkShims(); c.shims.noClock != nil {
		t.Fatal(c.shims.noClock)
	}
	r := &run{servers: c, ttl: time.Millisecond}
	ahead := func() time.Duration {
		lines := ask(t, m, "TIME") // *2 $10 SECONDS $6 MICROSECONDS
		seconds, err1 := strconv.ParseInt(lines[2], 10, 64)
		micros, err2 := strconv.ParseInt(lines[4], 10, 64)
		if err1 != nil || err2 != nil {
			t.Fatalf("TIME: %q", lines)
		}
		return time.Until(time.Unix(seconds, micros*1000))
	}
	for n := 1; n <= int(mostBack/stepBack); n++ {
		targets := c.victims(planned{fault: faultClock})
		if len(targets) != 1 {
			t.Fatalf("after %d steps: %v", n-1, targets)
		}
		if err := r.jump(t.Context(), m, planned{fault: faultClock}); err != nil {
			t.Fatal(err)
		}
		if m.behind != time.Duration(n)*stepBack {
			t.Errorf("after %d steps it is behind by %s", n, m.behind)
		}
	}
	if targets := c.victims(planned{fault: faultClock}); targets != nil {
		t.Errorf("it can be stepped back further than by %s", m.behind)
	}
	if d := ahead(); d > -mostBack || d < -time.Minute {
		t.Errorf("the server is ahead by %s after %s", d, m.behind)
	}
	c.shims.jumps = jumpsFar
	far := make(chan time.Duration, 2)
	for _, at := range []time.Duration{0, 16 * time.Millisecond} {
		ctx, seen := context.WithCancel(t.Context())
		go func() { // the jump lasts until it is seen
			defer seen()
			d := ahead()
			for d.Abs() < farJump/2 && retry.Pause(ctx, 10*time.Millisecond) {
				d = ahead()
			}
			far <- d
		}()
		err := r.jump(ctx, m, planned{at: at, lasts: time.Minute})
		seen()
		if err != nil {
			t.Fatal(err)
		}
		if d := <-far; d.Abs() < farJump/2 {
			t.Errorf("while it jumps it is ahead by %s", d)
		}
		if d := ahead(); d.Abs() > time.Minute {
			t.Errorf("after that it is ahead by %s", d)
		}
	}
}

// The plan has faults of disks and clocks only if there are such shims, and the gentle one has
// none of clocks.
func TestPlanOfShims(t *testing.T) {
	t.Parallel()
	for _, p := range Profiles() {
		for _, disks := range []bool{false, true} {
			for _, clocks := range []bool{false, true} {
				able := abilities{processes: true, relay: true, servers: 1, disks: disks, clocks: clocks}
				has := make(map[fault]bool)
				for _, f := range plan(3, p, able, time.Second, time.Minute) {
					has[f.fault] = true
				}
				if has[faultSlowDisk] != (disks && p != Jepsen) || has[faultClock] != (clocks && p != Jepsen && p != Gentle) {
					t.Errorf("%s, disks %v, clocks %v: %v", p, disks, clocks, has)
				}
			}
		}
	}
}

// docs/guarantees.md promises which clocks may jump: no clock that measures leases is ever
// ahead, and those of Go servers cannot be set.
func TestJumpsOfKinds(t *testing.T) {
	t.Parallel()
	want := map[string]jumps{
		"redis": jumpsBack, "redlock": jumpsBack, "postgres": jumpsBack, "postgres+advisory": jumpsBack, "mysql": jumpsBack,
		"zookeeper": jumpsFar, "mysql+getlock": jumpsFar,
		"etcd": jumpsNone, "consul": jumpsNone, "kubernetes": jumpsNone, "holdfast": jumpsNone,
	}
	nothing := []string{"/bin/true"}
	programs := map[string][]string{}
	for _, name := range []string{"redis-server", "etcd", "java", "consul", "initdb", "postgres", "mariadb-install-db", "mariadbd", "kube-apiserver", "holdfast"} {
		programs[name] = nothing
	}
	for kind := range launch.Kinds() {
		c := &cluster{dir: testserver.Dir(t), programs: programs}
		if err := c.prepare(t.Context(), kind); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if got, known := want[kind]; !known || c.shims.jumps != got {
			t.Errorf("%s: %d, want %d", kind, c.shims.jumps, got)
		}
	}
}

// Faults that the machine cannot do are left out, and the report says why.
func TestWithoutShims(t *testing.T) {
	t.Parallel()
	c := &cluster{}
	c.shims.noDisk = fmt.Errorf("%w: gcc is not installed", shim.ErrUnsupported)
	c.shims.noClock = c.shims.noDisk
	r := &run{servers: c, able: abilities{servers: 1}, cfg: Config{Profile: Torture}}
	got := strings.Join(r.untestedShims(), "; ")
	if !strings.Contains(got, "slow disks, and what a failure of the power takes from the servers: not possible on this machine: gcc is not installed") ||
		!strings.Contains(got, "clocks that jump: not possible on this machine: gcc is not installed") {
		t.Error(got)
	}
	c.shims.noDisk, c.shims.noClock, c.shims.jumps = nil, nil, jumpsBack
	r.able.disks, r.able.clocks = true, true
	if got := r.untestedShims(); len(got) != 1 || got[0] != "clocks that jump, but for those of the servers, which are stepped back by 1s at most" {
		t.Errorf("%q", got)
	}
	r.cfg.Profile = Jepsen
	if got := r.untestedShims(); len(got) != 2 || !strings.HasSuffix(got[0], ": the profile is jepsen") {
		t.Errorf("%q", got)
	}
	r.servers = nil
	if got := r.untestedShims(); !slices.Equal(got, []string{"clocks that jump"}) {
		t.Errorf("%q", got)
	}
	if got := c.victims(planned{fault: faultSlowDisk}); got != nil {
		t.Errorf("a slow disk of %v", got)
	}
}

// A run that is interrupted while its servers start leaves nothing behind.
func TestInterruptedStartLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for _, after := range []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		c, err := startCluster(ctx, "redlock", nil)
		cancel()
		if err == nil {
			err = c.end()
		}
		if left, _ := os.ReadDir(os.Getenv("TMPDIR")); len(left) > 0 {
			t.Errorf("after %s there is %v, %v", after, left, err)
		}
	}
}
