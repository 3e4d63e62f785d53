//go:build unix

package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// PostgresServer is a PostgreSQL server of its own, on a free loopback port. It trusts every
// client that connects (trust); the superuser is "postgres". The methods that take no context
// fail the test when they fail; they belong to the test's goroutine.
type PostgresServer struct {
	ownTime
	ownDisk

	t        testing.TB
	settings []string
	bin      string
	dir      string
	port     int
	uid, gid uint32
	proc     *Process
}

// Postgres starts a server with an empty cluster. settings are added to its command
// line, as in Postgres(t, "max_connections=20"). It ends with the test. It runs as the
// test's user, and as "postgres" where that is root, which PostgreSQL refuses.
func Postgres(t testing.TB, settings ...string) *PostgresServer {
	t.Helper()
	s := &PostgresServer{t: t, settings: settings, bin: postgresBin(t), dir: Dir(t), port: FreePort(t)}
	if os.Getuid() == 0 {
		s.uid, s.gid = idsOf(t, "postgres")
		if err := os.Chown(s.dir, int(s.uid), int(s.gid)); err != nil {
			t.Fatalf("testserver: %v", err)
		}
	}
	init := Start(t, Command{
		Path: filepath.Join(s.bin, "initdb"), Dir: s.dir, User: s.uid, Group: s.gid,
		Args: []string{"-D", s.data(), "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C"},
	})
	init.wanted.Store(true)
	if err := init.Wait(startTimeout); err != nil {
		t.Fatalf("testserver: initdb: %v\n%s", err, init.Log())
	}
	s.Start()
	return s
}

// postgresBin is the folder of the newest server that is installed. Debian keeps the
// programs of each version out of $PATH.
func postgresBin(t testing.TB) string {
	t.Helper()
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path)
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		t.Fatalf("testserver: PostgreSQL is not installed: no initdb in $PATH or /usr/lib/postgresql")
	}
	return filepath.Dir(slices.Max(found))
}

func idsOf(t testing.TB, name string) (uint32, uint32) {
	t.Helper()
	u, err := user.Lookup(name)
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	const bits = 32
	id, errID := strconv.ParseUint(u.Uid, 10, bits)
	group, errGroup := strconv.ParseUint(u.Gid, 10, bits)
	if err := errors.Join(errID, errGroup); err != nil {
		t.Fatalf("testserver: user %s: %v", name, err)
	}
	return uint32(id), uint32(group)
}

func (s *PostgresServer) data() string { return filepath.Join(s.dir, "data") }

// Addr is the address, "127.0.0.1:port".
func (s *PostgresServer) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// URL is the superuser's URL.
func (s *PostgresServer) URL() string { return s.URLOf("postgres", s.Addr()) }

// URLOf is the URL of another user, or by another address, as through a proxy.
func (s *PostgresServer) URLOf(name, addr string) string {
	return "postgres://" + name + "@" + addr + "/postgres?sslmode=disable"
}

// Process is the current run, to be killed, stopped and continued.
func (s *PostgresServer) Process() *Process { return s.proc }

// Kill ends the server, and everything that it started, with SIGKILL. Start starts it
// again.
func (s *PostgresServer) Kill() {
	s.t.Helper()
	s.proc.Kill()
	s.awaitDetached()
}

// awaitDetached waits until no process of the server that was killed has its shared memory any
// more: no other server starts before that.
func (s *PostgresServer) awaitDetached() {
	s.t.Helper()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for end := time.Now().Add(endTimeout); time.Now().Before(end); <-tick.C {
		if !attached(s.proc.Pid()) {
			return
		}
	}
	s.t.Fatalf("testserver: processes of postgres (%d) are still there", s.proc.Pid())
}

// attached reports whether a process uses shared memory that the process pid has made.
func attached(pid int) bool {
	table, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		return false // not on this system
	}
	const creator, users = 4, 6
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > users && fields[creator] == strconv.Itoa(pid) && fields[users] != "0" {
			return true
		}
	}
	return false
}

// Shutdown ends the server as its operator would in a hurry: "fast", which notifies all
// connections. Start starts it again.
func (s *PostgresServer) Shutdown() {
	s.t.Helper()
	s.proc.wanted.Store(true)
	s.proc.Signal(syscall.SIGINT)
	_ = s.proc.Wait(startTimeout)
}

// Start starts a server that was ended again, with its data.
func (s *PostgresServer) Start() {
	s.t.Helper()
	args := []string{"-D", s.data(), "-p", strconv.Itoa(s.port)}
	for _, v := range append([]string{
		"listen_addresses=127.0.0.1", "unix_socket_directories=" + s.dir, "max_connections=300", "shared_buffers=32MB",
	}, s.settings...) {
		args = append(args, "-c", v)
	}
	s.proc = Start(s.t, Command{
		Path: filepath.Join(s.bin, "postgres"), Dir: s.dir, User: s.uid, Group: s.gid, Env: s.clock.env(), Disk: s.disk, Args: args, Interrupt: syscall.SIGINT,
	})
	s.proc.Await(startTimeout, s.ours)
}

// Restart kills the server with SIGKILL and starts it again on the same address, with its data.
func (s *PostgresServer) Restart() {
	s.t.Helper()
	s.Kill()
	s.Start()
}

// PostgresDatabase is a database of a server, as the superuser sees it.
type PostgresDatabase struct {
	t   testing.TB
	url string
}

// Database makes a database for a test that shares the server with others.
func (s *PostgresServer) Database(t testing.TB, name string) *PostgresDatabase {
	t.Helper()
	(&PostgresDatabase{t, s.URL()}).Exec("CREATE DATABASE " + name)
	return &PostgresDatabase{t, strings.Replace(s.URL(), "/postgres?", "/"+name+"?", 1)}
}

func (s *PostgresServer) first() *PostgresDatabase { return &PostgresDatabase{s.t, s.URL()} }

// Exec runs statements as the superuser, over a connection of its own.
func (s *PostgresServer) Exec(statements ...string) {
	s.t.Helper()
	s.first().Exec(statements...)
}

// Int runs a query of one number as the superuser, over a connection of its own.
func (s *PostgresServer) Int(query string, args ...any) int64 {
	s.t.Helper()
	return s.first().Int(query, args...)
}

// URL is the superuser's URL.
func (d *PostgresDatabase) URL() string { return d.url }

// Exec runs statements as the superuser, over a connection of its own.
func (d *PostgresDatabase) Exec(statements ...string) {
	d.t.Helper()
	err := d.with(d.t.Context(), func(ctx context.Context, c *pgx.Conn) error {
		for _, q := range statements {
			if _, err := c.Exec(ctx, q); err != nil {
				return fmt.Errorf("%s: %w", q, err)
			}
		}
		return nil
	})
	if err != nil {
		d.t.Fatalf("testserver: postgres: %v", err)
	}
}

// Int runs a query of one number as the superuser, over a connection of its own.
func (d *PostgresDatabase) Int(query string, args ...any) int64 {
	d.t.Helper()
	var n int64
	err := d.with(d.t.Context(), func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, query, args...).Scan(&n)
	})
	if err != nil {
		d.t.Fatalf("testserver: postgres: %s: %v", query, err)
	}
	return n
}

func (d *PostgresDatabase) with(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c, err := pgx.Connect(ctx, d.url)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = c.Close(ctx) }()
	return f(ctx, c)
}

// ours reports whether the server that was started answers.
func (s *PostgresServer) ours(ctx context.Context) error {
	return s.first().with(ctx, func(ctx context.Context, c *pgx.Conn) error {
		var data string
		if err := c.QueryRow(ctx, "SELECT current_setting('data_directory')").Scan(&data); err != nil {
			return fmt.Errorf("data directory: %w", err)
		}
		if data != s.data() {
			return errors.New("another server answers")
		}
		return nil
	})
}

func (s *PostgresServer) again() {
	s.t.Helper()
	s.Shutdown()
	s.Start()
}
