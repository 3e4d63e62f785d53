package shim

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// diskRun is one run of a program on a Disk. The kernel holds the program's calls to pwrite and
// to sync, and those of the processes that it starts, until they are answered here
// (seccomp_unotify(2)). It does not hold calls to write: a server also writes to its connections
// with them, and each would wait for this process. The fields belong to the goroutine that serves
// the run.
type diskRun struct {
	disk      *Disk
	listener  int
	syncing   sync.WaitGroup
	processes map[uint32]int // the kernel's handles of the processes, by thread
	files     map[fileID]*logFile
}

type fileID struct{ device, inode uint64 }

// logFile is a log that was synced. If the server writes anywhere in the log, later writes are
// kept in a cache. Otherwise they are cut off when the server has ended.
type logFile struct {
	kind logKind
	file *os.File   // opened separately: its position is not used, and it does not append
	turn sync.Mutex // one sync at a time

	mu      sync.Mutex
	cache   []piece // of a log that is written anywhere
	written int     // number of pieces since the start
	durable int64   // of a log that is written from its start to its end; -1: it was not synced
}

// logKind is how a server writes a log.
type logKind int

const (
	logNone     logKind = iota // the file is no log
	logAnywhere                // with pwrite, at any position
	logGrows                   // with write, each time behind the last
	logFilled                  // the same, in a file that was filled with zeros before
)

type piece struct {
	at   int64
	data []byte
}

// notification is struct seccomp_notif of linux/seccomp.h.
type notification struct {
	id   uint64
	pid  uint32 // of the thread
	_    uint32
	call int32
	_    uint32
	_    uint64
	args [6]uint64
}

// answer is struct seccomp_notif_resp.
type answer struct {
	id    uint64
	value int64
	err   int32
	flags uint32
}

// serve receives the listener of a started program, and answers its calls until the program,
// and all that it started, have ended. The cache is then lost.
func (d *Disk) serve(socket *net.UnixListener) error {
	listener, err := receiveFile(socket)
	_ = socket.Close() // no other program connects
	if err != nil || listener < 0 {
		return err
	}
	r := &diskRun{disk: d, listener: listener, processes: make(map[uint32]int), files: make(map[fileID]*logFile)}
	defer r.end()
	for {
		// This wait ends when no process is left. A receive does not, on older kernels.
		called, err := pollRead(listener)
		if errors.Is(err, syscall.EINTR) {
			continue
		} else if err != nil {
			return fmt.Errorf("wait: %w", err)
		}
		if !called {
			return nil
		}
		var n notification
		errno := ioctl(listener, notifRecv, unsafe.Pointer(&n)) //nolint:gosec // the kernel's interface
		if errno == 0 {
			r.decide(n)
		} else if errno != syscall.ENOENT && errno != syscall.EINTR { // these mean that the caller was killed
			return fmt.Errorf("receive: %w", errno)
		}
	}
}

// receiveFile returns the file that the launcher sends, or -1 if the launcher ended before
// that.
func receiveFile(socket *net.UnixListener) (int, error) {
	conn, err := socket.AcceptUnix()
	if errors.Is(err, net.ErrClosed) {
		return -1, nil
	} else if err != nil {
		return -1, fmt.Errorf("accept: %w", err)
	}
	defer func() { _ = conn.Close() }()
	const size = 4 // of a file descriptor
	control := make([]byte, syscall.CmsgSpace(size))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), control) //nolint:dogsled // the rest is of no use
	if err != nil || n == 0 {
		return -1, nil // the launcher was killed
	}
	messages, err := syscall.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return -1, fmt.Errorf("%d control messages: %w", len(messages), err)
	}
	files, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(files) != 1 {
		return -1, fmt.Errorf("%d files: %w", len(files), err)
	}
	return files[0], nil
}

// decide answers a call, or starts a goroutine that does. A call that is not about a log is
// executed unchanged.
func (r *diskRun) decide(n notification) {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", n.pid, n.args[0]))
	kind := kindOf(path)
	if err != nil || kind == logNone || n.call == syscall.SYS_PWRITE64 && kind != logAnywhere {
		r.reply(n, answer{flags: notifContinue})
		return
	}
	flush, written, err := r.perform(n, kind)
	switch {
	case err != nil:
		r.fail(n, path, err)
	case flush == nil:
		r.reply(n, answer{value: written})
	default:
		r.syncing.Go(func() {
			if err := flush(); err != nil {
				r.fail(n, path, err)
				return
			}
			r.reply(n, answer{value: written})
		})
	}
}

// perform executes the call on a log, and returns the number of bytes written. It does not
// sync: if the call is a sync, or ends with one, perform returns the sync.
func (r *diskRun) perform(n notification, kind logKind) (func() error, int64, error) {
	fd, err := r.open(n)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = syscall.Close(fd) }()
	f, err := r.file(fd, kind)
	if err != nil || f == nil {
		return nil, 0, err
	}
	flags, err := fileFlags(fd)
	if err != nil {
		return nil, 0, fmt.Errorf("its flags: %w", err)
	}
	var data []byte
	if n.call == syscall.SYS_PWRITE64 {
		if data, err = memory(n.pid, n.args[1], n.args[2]); err != nil {
			return nil, 0, err
		}
		f.keep(int64(n.args[3]), data)  //nolint:gosec // an offset
		if flags&syscall.O_DSYNC == 0 { // O_SYNC has its bit, too
			return nil, int64(len(data)), nil
		}
	}
	f.mu.Lock()
	pieces := f.written
	f.mu.Unlock()
	end, err := position(fd, flags)
	if err != nil {
		return nil, 0, err
	}
	return func() error { return r.sync(n, f, pieces, end) }, int64(len(data)), nil
}

// position returns where the log of fd, which is written from its start to its end, ends.
func position(fd, flags int) (int64, error) {
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY && flags&syscall.O_APPEND == 0 {
		at, err := syscall.Seek(fd, 0, io.SeekCurrent)
		if err != nil {
			return 0, fmt.Errorf("its position: %w", err)
		}
		return at, nil
	}
	var info syscall.Stat_t // nothing was written at the position of such a descriptor
	if err := syscall.Fstat(fd, &info); err != nil {
		return 0, fmt.Errorf("fstat: %w", err)
	}
	return info.Size, nil
}

// open returns a descriptor of the file that the call is about, which the caller has open too.
func (r *diskRun) open(n notification) (int, error) {
	for again := false; ; again = true {
		process, err := r.process(n.pid)
		if err != nil {
			return 0, err
		}
		fd, err := pidfdGetfd(process, int(n.args[0])) //nolint:gosec // a file descriptor is small
		if errors.Is(err, syscall.ESRCH) && !again {   // another process had this number before
			_ = syscall.Close(process)
			delete(r.processes, n.pid)
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("get its file: %w", err)
		}
		return fd, nil
	}
}

// process returns the kernel's handle of the process of a thread.
func (r *diskRun) process(thread uint32) (int, error) {
	if handle, ok := r.processes[thread]; ok {
		return handle, nil
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return 0, err //nolint:wrapcheck // it names the file
	}
	_, after, _ := strings.Cut(string(status), "\nTgid:")
	var leader, handle int
	if _, err = fmt.Sscan(after, &leader); err == nil {
		handle, err = pidfdOpen(leader)
	}
	if err != nil {
		return 0, fmt.Errorf("the process of thread %d: %w", thread, err)
	}
	for other, ended := range r.processes { // a server may start a process for each client
		if pidfdEnded(ended) {
			_ = syscall.Close(ended)
			delete(r.processes, other)
		}
	}
	r.processes[thread] = handle
	return handle, nil
}

// file returns the log of fd, or nil if fd is a folder.
func (r *diskRun) file(fd int, kind logKind) (*logFile, error) {
	var info syscall.Stat_t
	if err := syscall.Fstat(fd, &info); err != nil {
		return nil, fmt.Errorf("fstat: %w", err)
	}
	id := fileID{info.Dev, info.Ino}
	if f := r.files[id]; f != nil || info.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return f, nil
	}
	file, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_WRONLY, 0)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the file
	}
	f := &logFile{kind: kind, file: file, durable: -1}
	r.files[id] = f
	return f, nil
}

// memory reads a part of the memory of a process.
func memory(thread uint32, at, size uint64) ([]byte, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/mem", thread))
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the file
	}
	defer func() { _ = file.Close() }()
	data := make([]byte, size)
	if got, err := file.ReadAt(data, int64(at)); err != nil && size > 0 { //nolint:gosec // an address of user space
		return nil, fmt.Errorf("read %d of %d bytes of its memory: %w", got, size, err)
	}
	return data, nil
}

// keep caches data that is written at a position.
func (f *logFile) keep(at int64, data []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cache = append(f.cache, piece{at, data})
	f.written++
}

// sync makes durable, after the delay of the disk, the first pieces of the cache and what the log
// has up to its position end. That data is lost when the caller is killed before.
func (r *diskRun) sync(n notification, f *logFile, pieces int, end int64) error {
	f.turn.Lock()
	defer f.turn.Unlock()
	if delay := time.Duration(r.disk.delay.Load()); delay > 0 && r.lives(n) {
		<-time.After(delay)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !r.lives(n) {
		return nil
	}
	synced := max(0, len(f.cache)-(f.written-pieces))
	for _, p := range f.cache[:synced] {
		if _, err := f.file.WriteAt(p.data, p.at); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	f.cache = slices.Clone(f.cache[synced:])
	f.durable = max(f.durable, end)
	r.disk.syncs.Add(1)
	return nil
}

// lives reports whether the caller is still alive.
func (r *diskRun) lives(n notification) bool {
	return ioctl(r.listener, notifIDValid, unsafe.Pointer(&n.id)) == 0 //nolint:gosec // the kernel's interface
}

// fail fails the call and reports that, unless the caller was killed. A process that is ending
// may still have a call that waits.
func (r *diskRun) fail(n notification, path string, err error) {
	if !r.lives(n) || errors.Is(err, syscall.ESRCH) || errors.Is(err, fs.ErrNotExist) {
		return
	}
	r.disk.report(fmt.Errorf("shim: disk: %s: %w", path, err))
	r.reply(n, answer{err: -int32(syscall.EIO)})
}

// reply answers a call, unless the caller was killed.
func (r *diskRun) reply(n notification, a answer) {
	a.id = n.id
	if errno := ioctl(r.listener, notifSend, unsafe.Pointer(&a)); errno != 0 && errno != syscall.ENOENT { //nolint:gosec // the kernel's interface
		r.disk.report(fmt.Errorf("shim: disk: reply: %w", errno))
	}
}

// end loses what is not durable. It returns when the syncs in progress are written.
func (r *diskRun) end() {
	r.syncing.Wait()
	for _, f := range r.files {
		if err := errors.Join(f.lose(), f.file.Close()); err != nil {
			r.disk.report(fmt.Errorf("shim: disk: end: %w", err))
		}
	}
	for _, handle := range r.processes {
		_ = syscall.Close(handle)
	}
	_ = syscall.Close(r.listener)
}

// lose removes what was written to the log after its last sync. The cache is lost anyway.
func (f *logFile) lose() error {
	if f.kind == logAnywhere || f.durable < 0 {
		return nil
	}
	info, err := f.file.Stat()
	if err != nil || info.Size() <= f.durable {
		return err //nolint:wrapcheck // it names the file
	}
	err = f.file.Truncate(f.durable)
	if f.kind == logFilled && err == nil {
		err = f.file.Truncate(info.Size()) // with zeros, as it was
	}
	return err //nolint:wrapcheck // it names the file
}

// kindOf returns how a server writes the file, if it is the log of a known server.
func kindOf(path string) logKind {
	folder, name := filepath.Base(filepath.Dir(path)), filepath.Base(path)
	switch {
	case folder == "pg_wal", // PostgreSQL
		strings.HasPrefix(name, "ib_logfile"), // MariaDB
		name == "raft.db":                     // Consul
		return logAnywhere
	case strings.HasSuffix(name, ".aof"): // Redis
		return logGrows
	case folder == "version-2" && strings.HasPrefix(name, "log."), // ZooKeeper
		strings.HasSuffix(name, ".wal"), folder == "wal.tmp": // etcd
		return logFilled
	}
	return logNone
}

// isolate keeps the terminal's signals from a compiler, and ends the processes that it started
// together with it.
func isolate(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
