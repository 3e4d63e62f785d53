//go:build unix

package holdfast_test

import (
	"syscall"
	"testing"
	"time"
)

// processorTime returns the processor time of this process. On a machine with other load the wall
// clock says little about speed.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
