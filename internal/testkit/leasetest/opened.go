package leasetest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
)

// Opened returns a backend that was opened, and closes it at the end of the test. It fails the test
// where opening or closing failed.
func Opened[B backend.Backend](t *testing.T, b B, err error) B {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

// Crashing is a server that can be killed.
type Crashing interface {
	Kill()
	Start()
}

// Disk is the disk of a server, which can be slow.
type Disk interface {
	Slow(each time.Duration)
	Fast()
	Without(do func())
}

// Harness returns the harness of the suite for a server, which is killed where the suite restarts it.
// slow is how long each sync takes where the suite needs a slow disk.
func Harness(s Crashing, disk Disk, slow time.Duration, open func(ctx context.Context) (backend.Backend, error)) backendtest.Harness {
	return backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := open(t.Context())
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		Restart:  func(backendtest.T) { s.Kill(); disk.Without(s.Start) },
		SlowDisk: func(backendtest.T) func() { disk.Slow(slow); return disk.Fast },
	}
}

// Canary is the password in the URLs of FuzzURL.
const Canary = "canary-7f3a"

// FuzzURL checks that every URL is parsed, or yields an *InvalidError without the password. parse
// returns any other error for a result that cannot be.
func FuzzURL(f *testing.F, parse func(raw string) error, seeds ...string) {
	f.Helper()
	for _, raw := range seeds {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		for _, raw := range []string{raw, strings.Replace(raw, "://", "://u:"+Canary+"@", 1)} {
			if err := parse(raw); err != nil && (!errors.Is(err, backend.ErrInvalid) || strings.Contains(err.Error(), Canary)) {
				t.Errorf("%q: %v", raw, err)
			}
		}
	})
}
