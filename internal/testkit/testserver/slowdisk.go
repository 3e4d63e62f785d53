//go:build unix

package testserver

import (
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/shim"
)

// SlowSync is a delay for [SlowDisk.Slow] with which a server can be killed many times a
// minute: longer than a client takes to learn of a commit and the test to kill the server.
const SlowSync = 20 * time.Millisecond

// SlowDisk is a disk of servers that loses what was not synced in a power failure (F28): see
// [shim.Disk]. Killing the server is the power failure.
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
// etcd has to sync its disk: with EtcdOptions.NoFsync the disk neither delays nor loses anything.
// The test fails where the disk does not work.
type SlowDisk struct {
	*shim.Disk
	t testing.TB
}

// NewSlowDisk makes a disk whose syncs take no time, until Slow.
func NewSlowDisk(t testing.TB) *SlowDisk {
	t.Helper()
	launcher, err := shim.NewLauncher(t.Context(), Dir(t))
	check(t, err)
	d := &SlowDisk{launcher.Disk(func(err error) { t.Errorf("testserver: %v", err) }), t}
	t.Cleanup(d.settle)
	return d
}

func (d *SlowDisk) settle() {
	d.t.Helper()
	if err := d.Settle(); err != nil {
		d.t.Errorf("testserver: %v", err)
	}
	if d.Syncs() == 0 && !d.t.Failed() {
		d.t.Error("testserver: no server has synced anything to its slow disk")
	}
}

// WithSlowDisk starts a server again, on a disk that the test makes slow, and returns both.
func WithSlowDisk[S disked](t testing.TB, s S) (S, *SlowDisk) {
	t.Helper()
	d := NewSlowDisk(t)
	UseDisk(s, d)
	return s, d
}

// UseDisk starts a server again, on a disk that the test makes slow. A member of a cluster
// answers only while most members run.
func UseDisk(s disked, d *SlowDisk) {
	s.setDisk(d)
	s.again()
}

// disked is a server whose disk can be made slow.
type disked interface {
	setDisk(d *SlowDisk)
	again()
}
