//go:build linux || darwin || freebsd

package sqlitelock

import (
	"context"
	"io"
	"path/filepath"
	"time"
)

// Host is a simulated machine: its boot, its boot clock and its wall clock.
type Host struct {
	Boot string
	Now  func() time.Duration
	Wall func() time.Time
}

// Option changes what OpenWith returns.
type Option func(*options)

// OpenWith is Open with options that only tests need.
func OpenWith(ctx context.Context, target string, opts ...Option) (*Backend, error) {
	o := Config{}.options()
	for _, opt := range opts {
		opt(&o)
	}
	return openTarget(ctx, target, o)
}

// WithHost opens the file as a process of another host would.
func WithHost(h Host) Option {
	return func(o *options) {
		o.host = func() (host, error) {
			return host{boot: h.Boot, now: func() instant { return instant(h.Now()) }, wall: h.Wall}, nil
		}
	}
}

// WithPages bounds the size of the file.
func WithPages(n int) Option { return func(o *options) { o.pages = n } }

// WithReserve sets how far ahead of a token the next ones are reserved.
func WithReserve(n int64) Option { return func(o *options) { o.reserve = n } }

// AroundSync sets a function that is called before the log is synced, and its result after that.
func AroundSync(f func() func()) Option {
	return func(o *options) { o.aroundSync = func() (func(), error) { return f(), nil } }
}

// FailSync sets a function that is called before the log is synced, and whose error is the disk's.
func FailSync(f func() error) Option {
	return func(o *options) { o.aroundSync = func() (func(), error) { return func() {}, f() } }
}

// ThroughLog sets what the log is written through when it is written once more.
func ThroughLog(f func(io.WriterAt) io.WriterAt) Option { return func(o *options) { o.through = f } }

// Queued returns how many requests wait for the writer.
func (b *Backend) Queued() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue)
}

// Socket returns the file of the backend value's socket.
func (b *Backend) Socket() string { return filepath.Join(b.path+"-wake", b.addr) }

// HostNow returns the time of the clock that all processes of this host share.
func HostNow() (time.Duration, error) {
	h, err := thisHost()
	if err != nil {
		return 0, err
	}
	return time.Duration(h.now()), nil
}

// Recheck is how often at least a value checks for lost notifications.
const Recheck = recheck

// Lag is how late after its end a lease may be free.
var Lag = (*Backend)(nil).Capabilities().ExpiryLag

// What has no exported name of its own.
var (
	ParseTarget       = parseTarget
	DefaultPathFor    = defaultPath
	RefusedFileSystem = refusedFileSystem
	CheckFileSystem   = checkFileSystem
	DataSource        = dataSource
)
