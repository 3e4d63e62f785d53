//go:build unix

package testserver

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/launch"
)

// MariaDBServer is a MariaDB server of its own, on a free loopback port. "root" has no
// password; the database "test" exists and is empty. The methods that take no context fail the
// test when they fail; they belong to the test's goroutine.
type MariaDBServer struct{ timed }

// MariaDB starts a server with empty tables. settings are added to its command line, as in
// MariaDB(t, "max_connections=20"). It ends with the test. It runs as the test's user, and
// as "mysql" where that is root, which MariaDB refuses.
func MariaDB(t testing.TB, settings ...string) *MariaDBServer {
	t.Helper()
	// Its collation folds case and accents, as on most servers.
	args := []string{"--character-set-server=utf8mb4", "--collation-server=utf8mb4_unicode_ci"}
	for _, v := range settings {
		args = append(args, "--"+v)
	}
	s, err := launch.MariaDB(t.Context(), options(t, args...))
	return &MariaDBServer{timed{started(t, s, err)}}
}

// GaleraProvider is what makes a MariaDB server a node of a Galera cluster, as Debian has it.
const GaleraProvider = "/usr/lib/galera/libgalera_smm.so"

// Galera starts the first node of a Galera cluster, with empty tables. It ends with the test.
func Galera(t testing.TB) *MariaDBServer {
	t.Helper()
	if _, err := os.Stat(GaleraProvider); err != nil {
		t.Fatalf("testserver: Galera is not installed: %v", err)
	}
	group := "127.0.0.1:" + strconv.Itoa(FreePort(t))
	transfer := "127.0.0.1:" + strconv.Itoa(FreePort(t))
	return MariaDB(t,
		"wsrep-on=ON", "wsrep-provider="+GaleraProvider, "wsrep-cluster-address=gcomm://", "wsrep-new-cluster", "binlog-format=ROW",
		"innodb-autoinc-lock-mode=2", "wsrep-node-address=127.0.0.1",
		"wsrep-provider-options=gcache.size=1M;gcache.page_size=1M;gmcast.listen_addr=tcp://"+group+";ist.recv_addr=tcp://"+transfer,
	)
}

// DSN is the data source name of root, for sql.Open("mysql", DSN).
func (s *MariaDBServer) DSN() string { return s.DSNOf("root", s.Addr(), "test") }

// DSNOf is the data source name of another user, or by another address, as through a proxy.
func (*MariaDBServer) DSNOf(user, addr, database string) string {
	return user + "@tcp(" + addr + ")/" + database
}

// URL is DSN as a URL, "mysql://root@address/test".
func (s *MariaDBServer) URL() string { return s.URLOf("root", s.Addr()) }

// URLOf is the URL of another user, or by another address, as through a proxy.
func (*MariaDBServer) URLOf(user, addr string) string {
	return "mysql://" + user + "@" + addr + "/test"
}

// Exec runs statements as root in the database "test", over a connection of its own.
func (s *MariaDBServer) Exec(statements ...string) {
	s.t.Helper()
	s.run(statements...)
}

// Int runs a query of one number as root, over a connection of its own. args are put in the place of
// its question marks.
func (s *MariaDBServer) Int(query string, args ...any) int64 {
	s.t.Helper()
	for _, a := range args {
		query = strings.Replace(query, "?", literal(a), 1)
	}
	return number(s.t, query, s.run(query))
}

func (s *MariaDBServer) run(statements ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), startTimeout)
	defer cancel()
	out, err := launch.MariaDBRun(ctx, s.Addr(), "test", statements...)
	check(s.t, err)
	return out
}
