//go:build unix

package holdfast_test

import (
	"syscall"
	"testing"
	"time"
)

// processorTime is what this process has had of the processors: on a machine that others use
// too the clock on the wall says little about what is fast.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
