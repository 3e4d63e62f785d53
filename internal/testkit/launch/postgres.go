//go:build unix

package launch

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Postgres returns a server with an empty cluster, which it creates. It trusts every client; the
// superuser is "postgres". It runs as that user if this process is root's, which PostgreSQL
// refuses.
func Postgres(ctx context.Context, o Options) (*Server, error) {
	s, err := o.server("postgres", "", "postgres")
	if err != nil {
		return nil, err
	}
	data := s.Path("data")
	if err := o.data(ctx, s, "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C"); err != nil {
		return nil, err
	}
	url := "postgres://postgres@" + s.addr + "/postgres?sslmode=disable"
	s.URL = url
	s.command.Argv = slices.Concat(s.command.Argv, []string{
		"-D", data, "-p", Port(s.addr), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=" + s.Dir(),
		"-c", "max_connections=300", "-c", "shared_buffers=32MB",
	}, o.Args)
	s.command.Interrupt = syscall.SIGINT // "fast": it ends all connections
	s.ready = func(ctx context.Context, _ *Process) error { return postgresServes(ctx, url, data) }
	s.remains = detached
	return s, nil
}

// postgresServes returns nil if the server is the one that was started: the one with the data.
func postgresServes(ctx context.Context, url, data string) error {
	dir, err := PostgresRun(ctx, url, "SELECT current_setting('data_directory')")
	if err != nil {
		return err
	}
	if dir != data {
		return errOther
	}
	return nil
}

// PostgresRun runs statements with the server's own client, on one connection, each in a transaction
// of its own. It returns what the client prints: a line for each row.
func PostgresRun(ctx context.Context, url string, statements ...string) (string, error) {
	args := []string{"--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1", "--dbname=" + url}
	for _, q := range statements {
		args = append(args, "--command="+q)
	}
	return client(ctx, "psql", args...)
}

// detached waits until no process of the server that was killed has its shared memory any more: no
// other server starts before that.
func detached(p *Process) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for end := time.Now().Add(killedIn); time.Now().Before(end); <-tick.C {
		if !attached(p.Pid()) {
			return nil
		}
	}
	return errors.New("processes of " + p.String() + " are still there") //nolint:err113 // for people
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
