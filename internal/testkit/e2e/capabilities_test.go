package e2e_test

import (
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/consullock"
	"github.com/holdfast-io/holdfast/backend/k8slock"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/backend/sqlitelock"
	"github.com/holdfast-io/holdfast/backend/zklock"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

var update = flag.Bool("update", false, "rewrite the generated parts of the documents")

// The capability table of the documents is what the backends report about themselves. The
// conformance suite checks each of them, both ways: a claimed capability is tested, and one
// that is not claimed must be refused.
func TestCapabilityTable(t *testing.T) {
	t.Parallel()
	caps := capabilities(t)
	generated(t, "../../../docs/choosing.md", "capabilities", capabilityTable(caps))
	generated(t, "../../../docs/guarantees.md", "contract", contractTable())
}

func capabilities(t *testing.T) []backend.Capabilities {
	t.Helper()
	mem := memlock.New()
	file, err := sqlitelock.Open(t.Context(), t.TempDir()+"/locks.db", sqlitelock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	all := []backend.Backend{mem, file}
	for _, name := range []string{"redis", "etcd"} {
		n := networks()[name](t)
		all = append(all, n.open(t, n.addr))
	}
	nodes := testserver.RedisAddrs(sharedRedlock())
	masters, err := redlock.Open(t.Context(), "redlock://"+nodes, redlock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ensemble, err := zklock.New(zklock.Config{Servers: []string{"127.0.0.1:2181"}}) // with the defaults; nothing is sent
	if err != nil {
		t.Fatal(err)
	}
	agent, err := consullock.Open(t.Context(), "consul://127.0.0.1:8500", consullock.Config{}) // with the defaults; nothing is sent
	if err != nil {
		t.Fatal(err)
	}
	database, err := pglock.Open(t.Context(), "postgres://127.0.0.1/postgres", pglock.Config{}) // nothing is sent
	if err != nil {
		t.Fatal(err)
	}
	other, err := mysqllock.Open(t.Context(), "mysql://127.0.0.1/test", mysqllock.Config{}) // nothing is sent
	if err != nil {
		t.Fatal(err)
	}
	advisory, err := pglock.OpenAdvisory(t.Context(), "postgres+advisory://127.0.0.1/postgres", pglock.AdvisoryConfig{}) // nothing is sent
	if err != nil {
		t.Fatal(err)
	}
	named, err := mysqllock.OpenUserLocks(t.Context(), "mysql+getlock://127.0.0.1/test", mysqllock.UserLocksConfig{}) // nothing is sent
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := k8slock.New(http.DefaultClient, "https://127.0.0.1", k8slock.Config{}) // nothing is sent
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, ensemble, agent, database, advisory, other, named, cluster)
	all = slices.Insert(all, 3, backend.Backend(masters))                                             // beside the one Redis
	served, err := remotelock.Open(t.Context(), "holdfast://"+overHTTP(t, file), remotelock.Config{}) // as "holdfast serve" is without a backend
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, served)
	caps := make([]backend.Capabilities, 0, len(all))
	for _, b := range all {
		caps = append(caps, b.Capabilities())
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	return caps
}

// latest is the bound on the time between the TTL of a dead holder and the end of its lease.
func latest(c backend.Capabilities) string {
	if c.Doubles {
		return "another TTL + " + short(c.ExpiryLag)
	}
	return short(c.ExpiryLag)
}

func capabilityTable(all []backend.Capabilities) string {
	rows := []struct {
		label string
		cell  func(backend.Capabilities) string
	}{
		{"exclusive, with tokens", func(backend.Capabilities) string { return "yes" }},
		{"timed leases, which outlive their process", func(c backend.Capabilities) string { return yes(c.Timed) }},
		{"shared (readers)", func(c backend.Capabilities) string { return yes(c.Shared) }},
		{"permits (semaphore)", func(c backend.Capabilities) string { return yes(c.Permits) }},
		{"first come, first served", func(c backend.Capabilities) string { return yes(c.FIFO) }},
		{"hand-over by push", func(c backend.Capabilities) string { return yes(c.Push) }},
		{"loss reported by push", func(c backend.Capabilities) string { return yes(c.LossPush) }},
		{"one renewal for all leases", func(c backend.Capabilities) string { return yes(c.Sessions) }},
		{"events", func(c backend.Capabilities) string { return yes(c.Watch) }},
		{"leases outlive a broken connection", func(c backend.Capabilities) string { return yes(!c.Tied) }},
		{"survives a restart of the store", func(c backend.Capabilities) string { return yes(c.Durable) }},
		{"token from", func(c backend.Capabilities) string { return c.TokenKind }},
		{"shortest TTL", func(c backend.Capabilities) string { return short(c.MinTTL) }},
		{"longest TTL", func(c backend.Capabilities) string { return short(c.MaxTTL) }},
		{"after its TTL, the lock of a dead holder is free within", latest},
	}
	var b strings.Builder
	b.WriteString("| |")
	for _, c := range all {
		fmt.Fprintf(&b, " %s |", c.Name)
	}
	b.WriteString("\n| --- |" + strings.Repeat(" --- |", len(all)) + "\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s |", r.label)
		for _, c := range all {
			fmt.Fprintf(&b, " %s |", r.cell(c))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func short(d time.Duration) string {
	if d >= 48*time.Hour && d%(24*time.Hour) == 0 {
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// replaceGenerated puts body between the two marks of a part.
func replaceGenerated(text, part, body string) (string, error) {
	begin, end := "<!-- "+part+": generated by make generate -->\n", "<!-- end of "+part+" -->"
	i := strings.Index(text, begin)
	j := strings.Index(text, end)
	if i < 0 || j < i {
		return "", fmt.Errorf("the marks of the generated part %q are missing", part)
	}
	return text[:i+len(begin)] + body + text[j:], nil
}
