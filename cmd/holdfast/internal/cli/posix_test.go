package cli_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// The supervision of macOS and the BSDs, on Linux: with it a command that is killed, stopped or signalled, or whose lock is
// lost, passes the same tests. Those of what only Linux has are left out: see docs/guarantees.md.
func TestSupervisionOfPOSIX(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	same := []string{
		"TestBrokenWhileRunning", "TestSignalsArePassedOn", "TestInterrupted", "TestWatchdogKilled", "TestNoOtherWatchdog",
		"TestStoppedCommandIsTerminated", "TestDaemonIsLeftAlone", "TestRunWithinRun", "TestFilesArePassedOn", "TestIgnoredSignals",
		"TestTerminal", "TestStopAndGoOn", "TestCommandOfAnotherUser", "TestStoppedPastTheLease", "TestStopInAPipeline", "TestAtMostSaysSo",
		"TestHolderKilled/sqlite", "TestHolderStopped/sqlite",
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.v", "-test.run", "^"+strings.Join(same, "$|^")+"$")
	cmd.Env = append(os.Environ(), tagsEnv+"=holdfast_posix")
	cmd.WaitDelay = 10 * time.Second // a command that was not killed keeps the pipe open
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range same {
		if !strings.Contains(string(out), "--- PASS: "+name+" (") {
			t.Errorf("%s was not run", name)
		}
	}
}
