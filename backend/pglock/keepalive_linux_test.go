package pglock_test

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// F3: the network is cut in the middle of a request. The server waits for the rest of it, to
// which idle_session_timeout does not apply: the kernel has to probe the other side, after the
// TTL and not after two hours.
func TestAdvisoryCutOffInTheMiddle(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.Postgres(t)
	b := openAdvisory(t, advisoryURL(s, "postgres", s.Addr()))
	const ttl = 50 * time.Second
	leasetest.Session(t, b, ttl, nil)
	leasetest.Eventually(t, "the server's kernel asks after the TTL", func() bool {
		for _, after := range keepalives(t, s.Addr()) {
			if after <= ttl+time.Second {
				return true
			}
		}
		return false
	})
}

// keepalives returns, for the connections to a server on this machine, when its kernel probes the
// other end: proc_pid_net(5), the field "tr tm->when" of /proc/net/tcp.
func keepalives(t *testing.T, server string) []time.Duration {
	t.Helper()
	const keepalive, tick = "02:", time.Second / 100
	_, port, err := net.SplitHostPort(server)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	var all []time.Duration
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[1] != fmt.Sprintf("0100007F:%04X", number) {
			continue
		}
		if when, ok := strings.CutPrefix(fields[5], keepalive); ok {
			ticks, err := strconv.ParseInt(when, 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, time.Duration(ticks)*tick)
		}
	}
	return all
}
