//go:build unix

package cli_test

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// waiting starts a command that waits for its backend. The returned function returns its exit
// status and its output.
func waiting(t *testing.T, cmd *exec.Cmd, stderr io.Writer) func() (int, string) {
	t.Helper()
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() (int, string) {
		_ = cmd.Wait()
		return cmd.ProcessState.ExitCode(), out.String()
	}
}

// With --wait, a server that is started later is waited for: its absence is temporary, as when
// a lock is held. The rest of the wait is for the lock.
func TestBackendThatComesWithinTheWait(t *testing.T) {
	t.Parallel()
	dir, port := testserver.Dir(t), testserver.FreePort(t)
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	lines, stderr := io.Pipe()
	ended := waiting(t, command(t, "holdfast://"+addr, "run", "--wait", "2m", "job", "--", "echo", "done"), stderr)
	said := make(chan string, 1)
	go func() {
		first, _ := bufio.NewReader(lines).ReadString('\n')
		said <- first
		_, _ = io.Copy(io.Discard, lines)
	}()
	if first := <-said; !strings.Contains(first, "retrying until --wait has elapsed") || !strings.Contains(first, "unavailable") {
		t.Errorf("it says %q", first)
	}
	startServer(t, dir, port)
	if status, out := ended(); status != 0 || out != "done\n" {
		t.Errorf("status %d, %q", status, out)
	}
	began := time.Now()
	const wait = 300 * time.Millisecond
	none := "holdfast://" + fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	if got := run(t, command(t, none, "acquire", "--wait", wait.String(), "job")); got.status != 74 || time.Since(began) < wait {
		t.Errorf("after %s: %+v", time.Since(began), got)
	}
	if got := run(t, command(t, none, "run", "--try", "job", "--", "true")); got.status != 74 || strings.Contains(got.stderr, "retrying") {
		t.Errorf("%+v", got)
	}
}
