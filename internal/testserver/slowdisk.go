//go:build unix

package testserver

import (
	"crypto/rand"
	_ "embed" // for the launcher
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

//go:embed shim/disk.c
var diskShim []byte

// SlowSync is a delay for [SlowDisk.Slow] with which a server can be killed many times a
// minute: longer than a client takes to learn of a commit and the test to kill the server.
const SlowSync = 20 * time.Millisecond

// SlowDisk is a disk of servers with a cache that is lost in a power failure (F28). What a
// server writes to its log stays in the cache until the server syncs the log, and a sync takes
// as long as the test says. The cache is lost when the server ends, so that killing it is a
// power failure: after the restart the log has what was synced, and nothing else. SIGKILL alone
// loses nothing that has reached the kernel.
//
// It works for servers in any language: the kernel hands their calls to the test (seccomp).
// The logs are those of Redis, PostgreSQL, MariaDB, ZooKeeper, etcd and Consul. All other
// files are the machine's, and writes that go around write and pwrite, such as writev, are
// durable at once.
//
// A server with UseDisk can have one; several servers can have the same one. How to:
//
//	s, disk := testserver.WithSlowDisk(t, testserver.MariaDB(t))
//	disk.Slow(testserver.SlowSync)
//	s.Kill()
//	disk.Without(s.Start)
//	disk.Fast()
//
// Slow and Fast may be called from any goroutine, while a server starts, runs, or is gone. An
// etcd has to sync its disk: with EtcdOptions.NoFsync all that it wrote is lost. It takes gcc
// and Linux 5.19; the test fails where it does not work.
type SlowDisk struct {
	t        testing.TB
	launcher string // runs what follows it
	delay    atomic.Int64
	all      sync.WaitGroup

	mu   sync.Mutex
	runs []diskProcess
}

// NewSlowDisk makes a disk whose syncs take no time, until Slow.
func NewSlowDisk(t testing.TB) *SlowDisk {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Fatal("testserver: a slow disk takes Linux, whose seccomp hands the calls of a server to the test")
	}
	d := &SlowDisk{t: t}
	d.launcher = newShim(t, "").build("disk", diskShim)
	t.Cleanup(d.all.Wait)
	return d
}

// WithSlowDisk starts a server again, on a disk that the test makes slow, and returns both.
func WithSlowDisk[S disked](t testing.TB, s S) (S, *SlowDisk) {
	t.Helper()
	d := NewSlowDisk(t)
	UseDisk(s, d)
	return s, d
}

// Slow makes each sync of a log take the delay. It holds for those that begin from now on.
func (d *SlowDisk) Slow(delay time.Duration) { d.delay.Store(int64(delay)) }

// Fast ends that.
func (d *SlowDisk) Fast() { d.Slow(0) }

// Without runs f with a fast disk: to start a server, which may sync its log often.
func (d *SlowDisk) Without(f func()) {
	delay := d.delay.Swap(0)
	f()
	d.delay.Store(delay)
}

// diskProcess is a run of a program on a disk: the process, and the answers to its calls.
type diskProcess struct{ ended, answered <-chan struct{} }

// launch makes the command, whose program is at the path, one that runs on the disk. The
// function is to be called with the end of the process.
func (d *SlowDisk) launch(path string, c Command) (Command, func(ended <-chan struct{})) {
	d.t.Helper()
	d.settle()
	name := "holdfast-disk-" + rand.Text()
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@" + name, Net: "unix"})
	if err != nil {
		d.t.Fatalf("testserver: slow disk: %v", err)
	}
	answered := make(chan struct{})
	d.all.Go(func() {
		defer close(answered)
		if err := d.serve(socket); err != nil {
			d.t.Errorf("testserver: slow disk: %v", err)
		}
	})
	c.Path, c.Args = d.launcher, append([]string{path}, c.Args...)
	c.Env = append(c.Env, "DISK_SOCKET="+name)
	return c, func(ended <-chan struct{}) {
		d.mu.Lock()
		d.runs = append(d.runs, diskProcess{ended, answered})
		d.mu.Unlock()
		go func() {
			<-ended
			_ = socket.Close() // a program that never ran does not connect
		}()
	}
}

// settle waits until nothing is written any more of what the processes synced that are gone:
// one that is started next may read it.
func (d *SlowDisk) settle() {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	limit := time.NewTimer(endTimeout)
	defer limit.Stop()
	d.runs = slices.DeleteFunc(d.runs, func(p diskProcess) bool {
		select {
		case <-p.ended:
		default:
			return false
		}
		select {
		case <-p.answered:
		case <-limit.C:
			d.t.Fatal("testserver: slow disk: what a server started still runs")
		}
		return true
	})
}

// UseDisk starts a server again, on a disk that the test makes slow. A member of a cluster
// answers only while most of them run.
func UseDisk(s disked, d *SlowDisk) {
	s.setDisk(d)
	s.again()
}

// disked is a server whose disk can be made slow.
type disked interface {
	setDisk(d *SlowDisk)
	again()
}

// ownDisk is the disk of a server.
type ownDisk struct{ disk *SlowDisk } // nil: the machine's

func (o *ownDisk) setDisk(d *SlowDisk) { o.disk = d }
