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
