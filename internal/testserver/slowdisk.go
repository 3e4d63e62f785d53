//go:build unix

package testserver

import (
	_ "embed" // for the shims
	"testing"
	"time"
)

//go:embed shim/disk.c
var diskShim []byte

//go:embed shim/syncs.c
var syncsShim []byte

// SlowSync is a delay for [SlowDisk.Slow] with which a server can be killed many times a
// minute: longer than a client takes to learn of a commit and the test to kill the server.
const SlowSync = 20 * time.Millisecond

// SlowDisk is a disk of servers that a test makes slow and fast while they run (F28). Each of
// their syncs waits before it is done, and so does each write to the log of those that go
// through the C library: MariaDB, PostgreSQL, Redis and ZooKeeper. What is written in Go asks
// the kernel itself, which hands the syncs to a supervisor: etcd, Consul.
//
// Nothing fails or is lost by that alone. It makes the time between a commit that others see
// and one that survives a crash as long as the test likes: kill the server within it.
//
// A server with UseDisk can have one; several servers can have the same one. How to:
//
//	s, disk := testserver.WithSlowDisk(t, testserver.MariaDB(t))
//	disk.Slow(20 * time.Millisecond)
//	s.Restart()
//	disk.Fast()
//
// Slow and Fast may be called while a server starts, runs, or is gone. They belong to the
// test's goroutine. An etcd has to sync its disk: EtcdOptions.NoFsync leaves nothing to slow
// down. It takes gcc, and for what is written in Go Linux 5.5.
type SlowDisk struct {
	shim     *shim  // its number is the microseconds of the delay
	library  string // for the C library
	launcher string // for the others: it runs what follows it
}

// NewSlowDisk makes a disk that is as fast as the machine's, until Slow.
func NewSlowDisk(t testing.TB) *SlowDisk {
	t.Helper()
	s := newShim(t, "DISK_SHIM")
	return &SlowDisk{
		shim:     s,
		library:  s.build("disk.so", diskShim, "-shared", "-fPIC"),
		launcher: s.build("syncs", syncsShim, "-pthread"),
	}
}

// WithSlowDisk starts a server again, with a disk that the test makes slow, and returns both.
func WithSlowDisk[S interface{ UseDisk(d *SlowDisk) }](t testing.TB, s S) (S, *SlowDisk) {
	t.Helper()
	d := NewSlowDisk(t)
	s.UseDisk(d)
	return s, d
}

// Slow makes each sync, and each write to a log, wait for the delay before it is done. It
// holds for those that begin from now on.
func (d *SlowDisk) Slow(delay time.Duration) {
	d.shim.t.Helper()
	d.shim.set(delay.Microseconds())
}

// Fast ends that.
func (d *SlowDisk) Fast() {
	d.shim.t.Helper()
	d.shim.set(0)
}

// static has a program that does not go through the C library use the disk. A nil disk leaves
// the command as it is.
func (d *SlowDisk) static(c Command) Command {
	if d == nil {
		return c
	}
	c.Args = append([]string{c.Path}, c.Args...)
	c.Path = d.launcher
	c.Env = append(c.Env, d.shim.variable+"="+d.shim.file)
	return c
}

// UseDisk starts the server again, on a disk that the test makes slow.
func (s *RedisServer) UseDisk(d *SlowDisk) {
	s.t.Helper()
	s.disk = d
	s.Restart()
}

// UseDisk starts the server again, on a disk that the test makes slow.
func (s *PostgresServer) UseDisk(d *SlowDisk) {
	s.t.Helper()
	s.disk = d
	s.Shutdown()
	s.Start()
}

// UseDisk starts the server again, on a disk that the test makes slow.
func (s *MariaDBServer) UseDisk(d *SlowDisk) {
	s.t.Helper()
	s.disk = d
	s.Shutdown()
	s.Start()
}

// UseDisk starts the server again, on a disk that the test makes slow.
func (s *ZooKeeperServer) UseDisk(d *SlowDisk) {
	s.t.Helper()
	s.disk = d
	s.Restart()
}

// UseDisk starts the server again, on a disk that the test makes slow.
func (s *ConsulServer) UseDisk(d *SlowDisk) {
	s.t.Helper()
	s.disk = d
	s.Restart()
}

// UseDisk starts the member again, on a disk that the test makes slow. A member of a cluster
// answers only while most of them run.
func (e *Etcd) UseDisk(d *SlowDisk) {
	e.t.Helper()
	e.disk = d
	e.Restart()
}
