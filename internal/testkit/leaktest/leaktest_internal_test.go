package leaktest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

const leaks = "HOLDFAST_TEST_LEAKS"

func TestMain(m *testing.M) {
	if os.Getenv(leaks) != "" {
		run(m, time.Second)
	}
	Main(m)
}

// The goroutines before are no leak, one that is ending is none either, and one that stays is
// reported with the line that started it.
func TestRemaining(t *testing.T) { //nolint:paralleltest // goroutines of other tests would be leaks
	old := make(chan struct{})
	go func() { <-old }()
	before := goroutines()
	if left := remaining(before, 0); len(left) != 0 {
		t.Errorf("%q are left before anything was started", left)
	}
	end := make(chan struct{})
	go func() { <-end }()
	left := remaining(before, 50*time.Millisecond)
	if len(left) != 1 || !strings.Contains(left[0], "created by") || !strings.Contains(left[0], "leaktest_internal_test.go") {
		t.Errorf("%q are left, and one goroutine was started", left)
	}
	time.AfterFunc(100*time.Millisecond, func() { close(end) })
	if left = remaining(before, patience); len(left) != 0 {
		t.Errorf("%q are left after their end", left)
	}
	close(old)
}

// A package that leaks fails although its tests pass.
func TestMainFails(t *testing.T) {
	t.Parallel()
	if os.Getenv(leaks) != "" {
		go func() { select {} }()
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMainFails$")
	cmd.Env = append(os.Environ(), leaks+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "leaktest: 1 goroutines are left") || !strings.Contains(string(out), "TestMainFails") {
		t.Errorf("%v: %s", err, out)
	}
}
