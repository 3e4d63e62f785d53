package access

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/internal/reload"
	"github.com/holdfast-io/holdfast/server"
)

// Options of a File. The zero value is suitable.
type Options struct {
	// Every is how often to look whether the file has changed. Default: 1 s. Optional.
	Every time.Duration
	// Verify verifies the tokens of issuers. Required if the file has issuers: "holdfast serve" uses
	// go-oidc, which this package does not require.
	Verify Verifier
	// Logger receives each change, and why a changed file was refused. Default: slog.Default(). Optional.
	Logger *slog.Logger
}

// File is a policy that is read again when its file has changed, and has stayed the same for Options.Every: a file that
// is being copied is not a policy. A file that cannot be read, has an error, or is empty changes nothing: the policy before it
// stays. Its methods are safe for concurrent use.
type File struct {
	path    string
	log     *slog.Logger
	verify  Verifier
	current atomic.Pointer[Policy]
	stale   atomic.Bool
	stop    func()
}

// Open reads a policy and begins to look for changes. Close it.
//
// Errors: those of the file system, and of Parse.
func Open(path string, o Options) (*File, error) {
	if o.Every == 0 {
		o.Every = time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	f := &File{path: path, log: o.Logger, verify: o.Verify}
	var err error
	if f.stop, err = reload.Keep(o.Every, f.read, f.reread, path); err != nil {
		return nil, err
	}
	return f, nil
}

// Close ends the looking for changes. The policy stays as it is.
func (f *File) Close() { f.stop() }

func (f *File) read() error {
	text, err := os.ReadFile(f.path)
	if err != nil {
		return fmt.Errorf("access: %w", err)
	}
	p, err := Parse(text)
	if err == nil {
		err = p.issued.with(f.verify)
	}
	if err != nil {
		return fmt.Errorf("access: %s: %w", f.path, err)
	}
	f.current.Store(p)
	return nil
}

// reread logs a change, or why it was refused.
func (f *File) reread(err error) {
	f.stale.Store(err != nil)
	if err != nil {
		f.log.LogAttrs(context.Background(), slog.LevelError, "the policy has an error, and was not changed", slog.String("error", err.Error()))
		return
	}
	f.log.LogAttrs(context.Background(), slog.LevelInfo, "the policy was changed", slog.String("file", f.path))
}

// Stale reports whether the file has changed and has an error, so that an earlier policy applies. It is the function for
// server.Config.Stale.
func (f *File) Stale() bool { return f.stale.Load() }

// Policy returns the policy that applies now.
func (f *File) Policy() *Policy { return f.current.Load() }

// Authorize is the function for server.Config.Authorize.
func (f *File) Authorize(principal string, a server.Action) error {
	return f.Policy().Authorize(principal, a)
}

// Identify is the function for server.Config.Identify.
func (f *File) Identify(r *http.Request) (string, error) { return f.Policy().Identify(r) }

// Quota is the function for server.Config.Quota.
func (f *File) Quota(principal string) server.Quota { return f.Policy().Quota(principal) }
