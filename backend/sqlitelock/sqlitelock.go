package sqlitelock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

const backendName = "sqlite"

// instant is a time of the host's boot clock, in nanoseconds.
type instant int64

const never instant = 1<<63 - 1

func (i instant) add(d time.Duration) instant { return i + instant(d) }

// host is what all processes that may share the file have in common.
type host struct {
	boot string           // identifies the boot that now counts from
	now  func() instant   // never goes back, and counts while the machine is suspended
	wall func() time.Time // for people, and to bridge a reboot
}

// Backend keeps leases in a file that many processes of one host may share. It implements
// backend.Backend. Its methods are safe for concurrent use. Use Open to make one.
type Backend struct {
	path   string
	rights os.FileMode // of what is made beside the file
	addr   string      // identifies this value for others: the name of its socket
	host   host
	log    *slog.Logger
	file   *store
	turn   *turnstile
	inbox  *inbox // nil: there are no sockets here

	calls *registry

	// What follows is used by the writer.
	known   *memory // nil: nothing
	feed    int64   // the last event that the watchers got; notWatching: this value is not listed as a watcher
	byTimer bool    // the alarm causes the next read
	checkAt instant // when to check for lost notifications; never: there are no waiters or watchers

	life   context.Context         //nolint:containedctx // Close ends it, and what makes the value unusable: its cause is that
	end    context.CancelCauseFunc // ends life
	closed atomic.Bool
	work   sync.WaitGroup // the goroutines
	// Each has capacity 1, is sent to without waiting, and is never closed: there is something in
	// queue or in look, in toSync.
	queued, unsynced chan struct{}

	mu       sync.Mutex // guards what follows
	queue    []*request
	toSync   []delivery
	reserved int64        // the reservation of tokens of the last commit that is to be synced
	synced   int64        // the one that is on the disk
	look     notification // what the next transaction reads for those that wait, listen or watch
	watchers map[*waiters.Watcher]struct{}

	closing func() error // runs close once
}

var _ backend.Backend = (*Backend)(nil)

// Config configures a Backend.
type Config struct {
	// Logger receives what is no caller's error: lost datagrams, a reboot. Default: slog.Default(). Optional.
	Logger *slog.Logger
}

// options are those of Config, and what tests change.
type options struct {
	log        *slog.Logger
	host       func() (host, error)
	pages      int                           // the most pages of the file; 0: any number
	reserve    int64                         // how far ahead of a token the next ones are reserved
	aroundSync func() (func(), error)        // called before the log is synced, and its result after that; its error is the disk's
	through    func(io.WriterAt) io.WriterAt // what is written to the log once more goes through it
}

func (c Config) options() options {
	o := options{
		log: c.Logger, host: thisHost, reserve: time.Minute.Microseconds(),
		aroundSync: func() (func(), error) { return func() {}, nil },
		through:    func(w io.WriterAt) io.WriterAt { return w },
	}
	if o.log == nil {
		o.log = slog.Default()
	}
	return o
}

// Open opens the lock file that target names, a URL or a path as described under the heading URL
// of the package's documentation. It creates the file where there is none. The directory must
// exist; only that of DefaultPath is created. The backend value has one connection, three
// goroutines and one socket, until it is closed.
//
// Errors: *backend.InvalidError for a bad target; *FileSystemError for a file system that
// machines share; ErrNewer; *backend.UnavailableError with ErrForeign, ErrCorrupt, ErrReadOnly,
// ErrFull, ErrOtherBoot or the system's error; ctx's cause.
func Open(ctx context.Context, target string, cfg Config) (*Backend, error) {
	return openTarget(ctx, target, cfg.options())
}

func openTarget(ctx context.Context, target string, o options) (*Backend, error) {
	if err := connect.Context(ctx); err != nil {
		return nil, err
	}
	path, err := parseTarget(target)
	if err != nil {
		return nil, err
	}
	b, err := open(ctx, path, o)
	if err != nil {
		return nil, unavailable("open", false, err)
	}
	return b, nil
}

func open(ctx context.Context, path string, o options) (*Backend, error) {
	h, err := o.host()
	if err != nil {
		return nil, err
	}
	b := &Backend{
		addr: strings.ToLower(rand.Text())[:20], host: h, log: o.log, feed: notWatching, checkAt: never,
		queued: make(chan struct{}, 1), unsynced: make(chan struct{}, 1),
		watchers: make(map[*waiters.Watcher]struct{}),
	}
	if b.path, b.rights, err = locate(path); err != nil {
		return nil, err
	}
	if b.turn, err = openTurnstile(b.path+"-turn", b.rights); err != nil {
		return nil, err
	}
	err = b.openFiles(ctx, o)
	if err == nil {
		err = b.file.check(ctx) // not in turn: it takes its time and only reads
	}
	if err != nil {
		return nil, errors.Join(err, b.closeFiles())
	}
	b.life, b.end = context.WithCancelCause(context.WithoutCancel(ctx))
	b.calls = waiters.New[struct{}, instant](b.life)
	b.closing = sync.OnceValue(b.close)
	b.work.Go(b.write)
	b.work.Go(b.sync)
	b.work.Go(b.readInbox)
	return b, nil
}

// openFiles opens everything except the turnstile, in turn: no other value of ours opens, writes
// or closes the file during that.
func (b *Backend) openFiles(ctx context.Context, o options) error {
	if err := b.turn.lock(ctx); err != nil {
		return err
	}
	defer b.turn.unlock()
	var err error
	if b.file, err = openStore(ctx, b.path, b.rights, o); err != nil {
		return err
	}
	if err := b.file.prepare(ctx, b.host, b.log); err != nil {
		return err
	}
	if b.inbox, err = openInbox(b.path+"-wake", b.addr, b.rights); err != nil {
		b.log.WarnContext(ctx, "no socket: hand-overs are found by timer", slog.String("path", b.path), slog.String("error", err.Error()))
		b.inbox = nil
	}
	return nil
}

func (b *Backend) closeFiles() error {
	var errs []error
	if b.file != nil {
		errs = append(errs, b.file.close())
	}
	if b.inbox != nil {
		errs = append(errs, b.inbox.close())
	}
	return errors.Join(append(errs, b.turn.close())...)
}

// Capabilities returns the capabilities: everything.
func (b *Backend) Capabilities() backend.Capabilities { return lockstate.Capabilities(backendName) }

// StoreID returns the ID that the file got when it was made. It implements backend.Identified. A copy of the file has the
// same ID.
func (b *Backend) StoreID() string { return "sqlite-" + b.file.id }

// Close ends the goroutines, and the calls in progress with ErrClosed. It closes the file and
// removes the socket. Leases stay in the file. The error is that of closing the files. A second
// Close does nothing and returns the same error.
//
// Where another process is stopped in the middle of a transaction, one goroutine is left asleep
// in the kernel until that process continues or dies.
func (b *Backend) Close() error { return b.closing() }

func (b *Backend) close() error {
	b.closed.Store(true)
	b.end(backend.ErrClosed)
	if b.inbox != nil {
		b.inbox.hangUp()
	}
	b.work.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.life), closePatience)
	defer cancel()
	if err := b.turn.lock(ctx); err == nil {
		defer b.turn.unlock()
	}
	if err := b.closeFiles(); err != nil {
		return unavailable("close", false, err)
	}
	return nil
}

// closePatience bounds how long Close waits for the other processes to let it close the file in
// turn. Out of turn it is safe too, but may make them wait.
const closePatience = time.Second

// locate returns the file's real path, and the rights of what is made there. It checks the file system,
// and creates the directory of DefaultPath.
func locate(path string) (string, os.FileMode, error) {
	usual, noHome := DefaultPath()
	path, err := filepath.Abs(path)
	if err == nil && noHome == nil && path == usual {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err != nil {
		return "", 0, fmt.Errorf("lock file: %w", err)
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return "", 0, fmt.Errorf("lock file: %w", err)
	}
	path = filepath.Join(dir, filepath.Base(path))
	if err := checkFileSystem(dir, path); err != nil {
		return "", 0, err
	}
	rights, err := rightsIn(dir)
	return path, rights, err
}

const ownerOnly os.FileMode = 0o600

// rightsIn returns the rights of files in a directory: for their owner only, unless the directory has the
// setgid bit and its group may write there. Its files are of that group then, and for all of its members,
// whatever their umask.
func rightsIn(dir string) (os.FileMode, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return 0, fmt.Errorf("lock file: %w", err)
	}
	const groupWrites = 0o020
	if info.Mode()&os.ModeSetgid != 0 && info.Mode()&groupWrites != 0 {
		const group = 0o060
		return ownerOnly | group, nil
	}
	return ownerOnly, nil
}
