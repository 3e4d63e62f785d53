package cli_test

import (
	"bufio"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testserver"
)

// A store that was just started grants nothing for a while: the commands report that
// immediately, with what turns it off, and never that the lock is held.
func TestQuarantine(t *testing.T) {
	t.Parallel()
	url := "redis://" + testserver.Redis(t).Addr() + "?quarantine=10m"
	for _, args := range [][]string{
		{"run", "--wait", "1s", "job", "--", "true"},
		{"run", "--try", "job", "--", "true"},
		{"acquire", "--wait", "1s", "job"},
		{"acquire", "--try", "job"},
		{"doctor"},
		{"bench", "--quick", "--rounds", "1"},
	} {
		got := run(t, command(t, url, args...))
		if got.status != 74 || strings.Contains(got.stderr, "is held") {
			t.Errorf("%v: %+v, want status 74", args, got)
		}
		for _, want := range []string{"in quarantine", "the server is new or lost its data", "quarantine=off"} {
			if !strings.Contains(got.stderr, want) {
				t.Errorf("%v: it does not say %q: %s", args, want, got.stderr)
			}
		}
	}
}

// A waiter learns of the quarantine while it waits.
func TestQuarantineIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	url := "redis://" + testserver.Redis(t).Addr() + "?quarantine=10m"
	for _, args := range [][]string{{"run", "job", "--", "true"}, {"acquire", "job"}, {"serve", "--backend", url, "--listen", "127.0.0.1:0"}} {
		cmd := command(t, url, args...)
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said := make(chan bool, 1)
		go func() {
			for lines := bufio.NewScanner(stderr); lines.Scan(); {
				if strings.Contains(lines.Text(), "in quarantine") {
					said <- true
					return
				}
			}
			said <- false
		}()
		select {
		case ok := <-said:
			if !ok {
				t.Errorf("%v ended and did not say it", args)
			}
		case <-time.After(time.Minute):
			t.Errorf("%v does not say it", args)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}
