//go:build !linux && !darwin && !freebsd

package sqlitelock

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"github.com/holdfast-io/holdfast/backend"
)

// There is no flock, and there are no datagram sockets in files, on this system:
// Open refuses.

func errSystem() error {
	return fmt.Errorf("%s on %s: %w", backendName, runtime.GOOS, backend.ErrUnsupported)
}

type turnstile struct{}

func openTurnstile(string, os.FileMode) (*turnstile, error) { return nil, errSystem() }

func (*turnstile) lock(context.Context) error { return errSystem() }
func (*turnstile) unlock()                    {}
func (*turnstile) close() error               { return nil }

func checkFileSystem(string, string) error { return errSystem() }

func linked(os.FileInfo) bool { return false }

func syncData(f *os.File) error { return f.Sync() }

type inbox struct{}

func openInbox(string, string, os.FileMode) (*inbox, error) { return nil, errSystem() }

func (*inbox) receive(func(notification)) error { return nil }
func (*inbox) send(string, string)              {}
func (*inbox) hangUp()                          {}
func (*inbox) close() error                     { return nil }
