//go:build unix

package testserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	_ "github.com/go-sql-driver/mysql" // "mysql" for database/sql
)

// MariaDBServer is a MariaDB server of its own, on a free loopback port. "root" has no
// password; the database "test" exists and is empty. The methods that take no context fail the
// test when they fail; they belong to the test's goroutine.
type MariaDBServer struct {
	ownTime
	ownDisk

	t        testing.TB
	settings []string
	dir      string
	port     int
	uid, gid uint32
	proc     *Process
}

// MariaDB starts a server with empty tables. settings are added to its command line, as in
// MariaDB(t, "max_connections=20"). It ends with the test. It runs as the test's user, and
// as "mysql" where that is root, which MariaDB refuses.
func MariaDB(t testing.TB, settings ...string) *MariaDBServer {
	t.Helper()
	s := &MariaDBServer{t: t, settings: settings, dir: Dir(t), port: FreePort(t)}
	if os.Getuid() == 0 {
		s.uid, s.gid = idsOf(t, "mysql")
		if err := os.Chown(s.dir, int(s.uid), int(s.gid)); err != nil {
			t.Fatalf("testserver: %v", err)
		}
	}
	install := Start(t, Command{
		Path: "mariadb-install-db", Dir: s.dir, User: s.uid, Group: s.gid,
		Args: []string{
			"--no-defaults", "--datadir=" + s.data(), "--auth-root-authentication-method=normal", "--skip-test-db",
			"--tmpdir=" + s.dir, "--innodb-log-file-size=8M", "--innodb-flush-method=fsync",
		},
	})
	install.wanted.Store(true)
	if err := install.Wait(startTimeout); err != nil {
		t.Fatalf("testserver: mariadb-install-db: %v\n%s", err, install.Log())
	}
	s.Start()
	s.Exec("CREATE DATABASE test")
	return s
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

// mariadbd is the path of the server. Debian keeps it in a folder that not every user has in
// $PATH.
func mariadbd(t testing.TB) string {
	t.Helper()
	if path, err := exec.LookPath("mariadbd"); err == nil {
		return path
	}
	const usual = "/usr/sbin/mariadbd"
	if _, err := os.Stat(usual); err != nil {
		t.Fatalf("testserver: MariaDB is not installed: no mariadbd in $PATH, and %v", err)
	}
	return usual
}

func (s *MariaDBServer) data() string { return filepath.Join(s.dir, "data") }

// Addr is the address, "127.0.0.1:port".
func (s *MariaDBServer) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

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

// Process is the current run, to be killed, stopped and continued.
func (s *MariaDBServer) Process() *Process { return s.proc }

// Kill ends the server with SIGKILL. Start starts it again.
func (s *MariaDBServer) Kill() {
	s.t.Helper()
	s.proc.Kill()
}

// Shutdown ends the server as its operator would: it ends all connections. Start starts
// it again.
func (s *MariaDBServer) Shutdown() {
	s.t.Helper()
	s.proc.Terminate()
}

// Start starts a server that was ended again, with its data.
func (s *MariaDBServer) Start() {
	s.t.Helper()
	args := []string{
		"--no-defaults", "--datadir=" + s.data(), "--port=" + strconv.Itoa(s.port), "--bind-address=127.0.0.1", "--tmpdir=" + s.dir,
		"--socket=" + filepath.Join(s.dir, "s.sock"), "--pid-file=" + filepath.Join(s.dir, "pid"), "--skip-name-resolve",
		"--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M", "--max-connections=300", "--back-log=1000", // a test opens a hundred sessions at the same time
	}
	for _, v := range s.settings {
		args = append(args, "--"+v)
	}
	s.proc = Start(s.t, Command{
		Path: mariadbd(s.t), Dir: s.dir, User: s.uid, Group: s.gid, Env: s.clock.env(), Disk: s.disk, Args: args, Interrupt: syscall.SIGTERM,
	})
	s.proc.Await(startTimeout, s.ours)
}

// Restart kills the server with SIGKILL and starts it again on the same address, with its data.
func (s *MariaDBServer) Restart() {
	s.t.Helper()
	s.Kill()
	s.Start()
}

// Exec runs statements as root in the database "test" where there is one, over a
// connection of its own.
func (s *MariaDBServer) Exec(statements ...string) {
	s.t.Helper()
	err := s.with(s.t.Context(), func(ctx context.Context, c *sql.Conn) error {
		_, _ = c.ExecContext(ctx, "USE test") // it does not exist while it is being created
		for _, q := range statements {
			if _, err := c.ExecContext(ctx, q); err != nil {
				return fmt.Errorf("%s: %w", q, err)
			}
		}
		return nil
	})
	if err != nil {
		s.t.Fatalf("testserver: mariadb: %v", err)
	}
}

// Int runs a query of one number as root, over a connection of its own.
func (s *MariaDBServer) Int(query string, args ...any) int64 {
	s.t.Helper()
	var n int64
	err := s.with(s.t.Context(), func(ctx context.Context, c *sql.Conn) error {
		if _, err := c.ExecContext(ctx, "USE test"); err != nil {
			return fmt.Errorf("use test: %w", err)
		}
		return c.QueryRowContext(ctx, query, args...).Scan(&n)
	})
	if err != nil {
		s.t.Fatalf("testserver: mariadb: %s: %v", query, err)
	}
	return n
}

func (s *MariaDBServer) with(ctx context.Context, f func(context.Context, *sql.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	db, err := sql.Open("mysql", s.DSNOf("root", s.Addr(), ""))
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer func() { _ = db.Close() }()
	c, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = c.Close() }()
	return f(ctx, c)
}

// ours reports whether the server that was started answers.
func (s *MariaDBServer) ours(ctx context.Context) error {
	return s.with(ctx, func(ctx context.Context, c *sql.Conn) error {
		var data string
		if err := c.QueryRowContext(ctx, "SELECT @@datadir").Scan(&data); err != nil {
			return fmt.Errorf("data directory: %w", err)
		}
		if filepath.Clean(data) != s.data() {
			return errors.New("another server answers")
		}
		// A node of Galera refuses every statement about a table until it is ready.
		var users int
		if err := c.QueryRowContext(ctx, "SELECT COUNT(*) FROM mysql.global_priv").Scan(&users); err != nil {
			return fmt.Errorf("look at a table: %w", err)
		}
		return nil
	})
}

func (s *MariaDBServer) again() {
	s.t.Helper()
	s.Shutdown()
	s.Start()
}
