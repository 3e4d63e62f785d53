package cli_test

import (
	"bufio"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// freshStores are stores that were just started, with the reason that they give.
func freshStores(t *testing.T) map[string]struct{ url, reason string } {
	t.Helper()
	const three = 3
	return map[string]struct{ url, reason string }{
		"redis":   {"redis://" + testserver.Redis(t).Addr() + "?quarantine=1h", "the server is new or lost its data"},
		"redlock": {"redlock://" + testserver.RedisAddrs(testserver.RedisNodes(t, three)) + "?max_ttl=1h&timeout=30s", "of the 3 nodes are new or lost data"},
	}
}

// A store that was just started grants nothing for a while. Every command says so, with the reason, the
// end and what turns it off, and none says that the lock is held.
func TestQuarantine(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	var all sync.WaitGroup
	defer all.Wait()
	for _, store := range freshStores(t) {
		// They wait for as long as a store may need to answer.
		for _, args := range [][]string{
			{"run", "--wait", "20s", "job", "--", "true"},
			{"run", "--try", "job", "--", "true"},
			{"acquire", "--wait", "20s", "job"},
			{"acquire", "--try", "job"},
			{"doctor"},
			{"bench", "--rounds", "1"},
		} {
			all.Go(func() {
				got := run(t, command(t, store.url, args...))
				if got.status != 74 || strings.Contains(got.stderr, "is held") {
					t.Errorf("%v: %+v, want status 74", args, got)
				}
				for _, want := range []string{"in quarantine for another ", store.reason, "quarantine=off"} {
					if !strings.Contains(got.stderr, want) {
						t.Errorf("%v: it does not say %q: %s", args, want, got.stderr)
					}
				}
			})
		}
	}
}

// A waiter learns of the quarantine while it waits, and a server says it when it starts.
func TestQuarantineIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	for _, store := range freshStores(t) {
		saidAtOnce(t, store.url)
	}
}

func saidAtOnce(t *testing.T, url string) {
	t.Helper()
	for _, args := range [][]string{{"run", "job", "--", "true"}, {"acquire", "job"}, {"elect", "job", "--", "true"}, {"serve", "--backend", url, "--listen", "127.0.0.1:0"}} {
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
