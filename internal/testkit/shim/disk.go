package shim

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed" // for the launcher
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

//go:embed c/disk.c
var diskSource []byte

// Launcher starts programs on a [Disk].
type Launcher struct{ path string }

// NewLauncher compiles the launcher into a folder, which must exist as long as programs are
// started.
func NewLauncher(ctx context.Context, dir string) (*Launcher, error) {
	path, err := build(ctx, dir, "disk", diskSource)
	if err != nil {
		return nil, err
	}
	return &Launcher{path}, nil
}

// Try writes a file in the folder on a disk of its own, as a server with these attributes
// would. The error is ErrUnsupported if that does not work: the kernel is too old, or forbids
// one of the calls.
func (l *Launcher) Try(ctx context.Context, dir string, attr *syscall.SysProcAttr) error {
	const size = 16
	path := filepath.Join(dir, "try.aof") // the name of a log
	defer func() { _ = os.Remove(path) }()
	var mu sync.Mutex
	var failed error
	d := l.Disk(func(err error) {
		mu.Lock()
		defer mu.Unlock()
		failed = errors.Join(failed, err)
	})
	cmd := exec.CommandContext(ctx, "dd", "if=/dev/zero", "of="+path, fmt.Sprintf("bs=%d", size), "count=1", "conv=fsync") //nolint:gosec // a fixed program
	cmd.SysProcAttr = attr
	said := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = said, said
	attend, err := d.Launch(cmd)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	err = cmd.Run()
	close(ended)
	attend(ended)
	err = errors.Join(err, d.Settle())
	mu.Lock()
	defer mu.Unlock()
	info, missing := os.Stat(path)
	switch err = errors.Join(err, failed); {
	case ctx.Err() != nil:
		return fmt.Errorf("shim: try a disk: %w", context.Cause(ctx))
	case err != nil, missing != nil, info.Size() != size, d.Syncs() == 0:
		return fmt.Errorf("%w: a slow disk takes seccomp with a listener, of Linux 5.19: %w: %.200s", ErrUnsupported, err, said)
	}
	return nil
}

// Disk is a disk for servers that loses in a power failure what was not synced. A sync of a log
// takes as long as [Disk.Slow] sets. When the server has ended, what it wrote to the log after
// the last sync that worked is lost, so that SIGKILL is a power failure. Without the disk,
// SIGKILL loses nothing that has reached the kernel.
//
// It works for servers in any language: the kernel passes their calls to this process
// (seccomp). The logs are those of Redis, PostgreSQL, MariaDB, ZooKeeper, etcd and Consul,
// recognised by their names. All other files are on the machine's disk. Nothing is lost of a log
// that the server has never synced, and nothing that was written to a log of PostgreSQL, MariaDB
// or Consul by another call than pwrite.
//
// Several servers can share a disk. All methods are safe for concurrent use.
type Disk struct {
	launcher string
	report   func(error)
	delay    atomic.Int64
	syncs    atomic.Int64

	mu   sync.Mutex
	runs []diskProcess
}

// Disk creates a disk whose syncs take no time, until Slow. report is called, from any
// goroutine, with each failure of the disk itself; the server's call then fails with EIO.
func (l *Launcher) Disk(report func(error)) *Disk { return &Disk{launcher: l.path, report: report} }

// Slow sets the delay of every sync of a log that begins from now on.
func (d *Disk) Slow(delay time.Duration) { d.delay.Store(int64(delay)) }

// Fast removes the delay.
func (d *Disk) Fast() { d.Slow(0) }

// Without runs f with a fast disk. It is for starting a server, which may sync its log often.
func (d *Disk) Without(f func()) {
	delay := d.delay.Swap(0)
	f()
	d.delay.Store(delay)
}

// Syncs returns the number of syncs of logs so far. 0 after a server has answered a write means
// that its log is not recognised.
func (d *Disk) Syncs() int64 { return d.syncs.Load() }

// diskProcess is a run of a program on a disk: the process, and the answers to its calls.
type diskProcess struct{ ended, answered <-chan struct{} }

// Launch changes a command that is not started yet to run on the disk. It first waits for the
// disk to be idle: see Settle. The caller must call attend after it has tried to start the
// command, with a channel that is closed at the end of the process.
func (d *Disk) Launch(cmd *exec.Cmd) (attend func(ended <-chan struct{}), err error) { //nolint:nonamedreturns // it names the function
	if err := d.Settle(); err != nil {
		return nil, err
	}
	name := "holdfast-disk-" + rand.Text()
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@" + name, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("shim: disk: %w", err)
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if err := d.serve(socket); err != nil {
			d.report(fmt.Errorf("shim: disk: %w", err))
		}
	}()
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Args = append([]string{d.launcher, cmd.Path}, cmd.Args[1:]...)
	cmd.Path, cmd.Env = d.launcher, append(cmd.Env, "DISK_SOCKET="+name)
	return func(ended <-chan struct{}) {
		d.mu.Lock()
		d.runs = append(d.runs, diskProcess{ended, answered})
		d.mu.Unlock()
		go func() {
			<-ended
			_ = socket.Close() // a program that never ran does not connect
		}()
	}, nil
}

// Settle waits until everything that ended processes have synced is written. A process that is
// started next may read it. The error means that a child of an ended process still runs.
func (d *Disk) Settle() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	limit := time.NewTimer(waitTimeout)
	defer limit.Stop()
	for len(d.runs) > 0 {
		n := slices.IndexFunc(d.runs, func(p diskProcess) bool {
			select {
			case <-p.ended:
				return true
			default:
				return false
			}
		})
		if n < 0 {
			return nil
		}
		select {
		case <-d.runs[n].answered:
		case <-limit.C:
			return errors.New("shim: disk: what a server started still runs")
		}
		d.runs = slices.Delete(d.runs, n, n+1)
	}
	return nil
}
