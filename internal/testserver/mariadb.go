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
	"time"

	"github.com/go-sql-driver/mysql"
)

// MariaDBServer is a MariaDB server of its own, on a free loopback port. The superuser is
// "root", without a password; the database "test" is empty. The methods that take no
// context fail the test when they fail; they belong to the test's goroutine.
type MariaDBServer struct {
	t        testing.TB
	settings []string
	dir      string
	port     int
	uid, gid uint32
	proc     *Process
}

// MariaDB starts a server with an empty data folder. settings are added to its command
// line, as in MariaDB(t, "--read-only=1"). It ends with the test. It runs as the test's
// user, and as "mysql" where that is root.
func MariaDB(t testing.TB, settings ...string) *MariaDBServer {
	t.Helper()
	s := &MariaDBServer{t: t, settings: settings, dir: Dir(t), port: FreePort(t)}
	if os.Getuid() == 0 {
		s.uid, s.gid = idsOf(t, "mysql")
		if err := os.Chown(s.dir, int(s.uid), int(s.gid)); err != nil {
			t.Fatalf("testserver: %v", err)
		}
	}
	init := Start(t, Command{
		Path: s.program("mariadb-install-db"), Dir: s.dir, User: s.uid, Group: s.gid,
		Args: []string{
			"--no-defaults", "--datadir=" + s.data(), "--auth-root-authentication-method=normal", "--skip-test-db",
			"--tmpdir=" + s.dir, "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=0",
		},
	})
	init.wanted.Store(true)
	if err := init.Wait(startTimeout); err != nil {
		t.Fatalf("testserver: mariadb-install-db: %v\n%s", err, init.Log())
	}
	s.Start()
	s.Exec("CREATE DATABASE test CHARACTER SET utf8mb4")
	return s
}

// program is the path of one of the programs. Debian keeps the server out of the $PATH of
// those who are not root.
func (s *MariaDBServer) program(name string) string {
	s.t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	path := filepath.Join("/usr/sbin", name)
	if _, err := os.Stat(path); err != nil {
		s.t.Fatalf("testserver: MariaDB is not installed: no %s in $PATH or /usr/sbin", name)
	}
	return path
}

func (s *MariaDBServer) data() string { return filepath.Join(s.dir, "data") }

// Addr is the address, "127.0.0.1:port".
func (s *MariaDBServer) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// URL is where the superuser connects to.
func (s *MariaDBServer) URL() string { return s.URLOf("root", s.Addr()) }

// URLOf is where another user connects to, or by another way, as through a proxy.
func (s *MariaDBServer) URLOf(name, addr string) string {
	return "mysql://" + name + "@" + addr + "/test"
}

// Process is the run under way, to be killed, stopped and continued.
func (s *MariaDBServer) Process() *Process { return s.proc }

// Kill ends the server with SIGKILL. Start starts it again.
func (s *MariaDBServer) Kill() {
	s.t.Helper()
	s.proc.Kill()
}

// Start starts a server that was ended again, with its data.
func (s *MariaDBServer) Start() {
	s.t.Helper()
	args := append([]string{
		"--no-defaults", "--datadir=" + s.data(), "--port=" + strconv.Itoa(s.port), "--bind-address=127.0.0.1", "--tmpdir=" + s.dir,
		"--socket=" + filepath.Join(s.dir, "s.sock"), "--pid-file=" + filepath.Join(s.dir, "pid"),
		"--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M", "--skip-name-resolve", "--max-connections=300",
	}, s.settings...)
	s.proc = Start(s.t, Command{
		Path: s.program("mariadbd"), Dir: s.dir, User: s.uid, Group: s.gid, Args: args, Interrupt: syscall.SIGTERM,
	})
	s.proc.Await(startTimeout, s.ours)
}

// Restart kills the server the hard way and starts it again on the same address, with its
// data.
func (s *MariaDBServer) Restart() {
	s.t.Helper()
	s.Kill()
	s.Start()
}

// Exec runs statements as the superuser, over a connection of its own.
func (s *MariaDBServer) Exec(statements ...string) {
	s.t.Helper()
	err := s.with(s.t.Context(), func(ctx context.Context, c *sql.Conn) error {
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

// Int runs a query of one number as the superuser, over a connection of its own.
func (s *MariaDBServer) Int(query string, args ...any) int64 {
	s.t.Helper()
	var n int64
	err := s.with(s.t.Context(), func(ctx context.Context, c *sql.Conn) error {
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
	cfg := mysql.NewConfig()
	cfg.User, cfg.Net, cfg.Addr, cfg.Timeout, cfg.MultiStatements, cfg.Logger = "root", "tcp", s.Addr(), time.Second, true, new(mysql.NopLogger)
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return fmt.Errorf("connector: %w", err)
	}
	db := sql.OpenDB(connector)
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
			return fmt.Errorf("data folder: %w", err)
		}
		if filepath.Clean(data) != s.data() {
			return errors.New("another server answers")
		}
		return nil
	})
}
