//go:build unix

package launch

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// MariaDB returns a server with empty tables, which it creates, and an empty database "test". "root"
// has no password. It runs as the user "mysql" if this process is root's, which MariaDB refuses.
func MariaDB(ctx context.Context, o Options) (*Server, error) {
	s, err := o.server("mariadbd", "", "mysql")
	if err != nil {
		return nil, err
	}
	data := s.Path("data")
	err = o.data(ctx, s, "mariadb-install-db", "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db",
		"--tmpdir="+s.Dir(), "--innodb-log-file-size=8M", "--innodb-flush-method=fsync")
	if err != nil {
		return nil, err
	}
	if err := s.write(map[string]string{"init.sql": "CREATE DATABASE IF NOT EXISTS test;\n"}); err != nil {
		return nil, err
	}
	s.URL = "mysql://root@" + s.addr + "/test"
	s.command.Argv = slices.Concat(s.command.Argv, []string{
		"--no-defaults", "--datadir=" + data, "--port=" + Port(s.addr), "--bind-address=127.0.0.1", "--tmpdir=" + s.Dir(),
		"--socket=" + s.Path("s.sock"), "--pid-file=" + s.Path("pid"), "--skip-name-resolve", "--init-file=" + s.Path("init.sql"),
		"--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M", "--max-connections=300", "--back-log=1000", // a hundred clients connect at the same time
	}, o.Args)
	s.command.Interrupt = syscall.SIGTERM // it ends all connections
	s.ready = func(ctx context.Context, _ *Process) error { return mariaDBServes(ctx, s.addr, data) }
	return s, nil
}

// mariaDBServes returns nil if the server is the one that was started: the one with the data.
func mariaDBServes(ctx context.Context, addr, data string) error {
	dir, err := MariaDBRun(ctx, addr, "", "SELECT @@datadir")
	if err != nil {
		return err
	}
	if filepath.Clean(dir) != data {
		return errOther
	}
	// A node of Galera refuses every statement about a table until it is ready.
	_, err = MariaDBRun(ctx, addr, "", "SELECT COUNT(*) FROM mysql.global_priv")
	return err
}

// MariaDBRun runs statements as root with the server's own client, on one connection to an address.
// It returns what the client prints: a line for each row, without the names of the columns.
func MariaDBRun(ctx context.Context, addr, database string, statements ...string) (string, error) {
	const delimiter = ";;" // a statement may have a semicolon in it
	return client(ctx, "mariadb", "--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--port="+Port(addr), "--user=root", "--database="+database,
		"--batch", "--raw", "--skip-column-names", "--delimiter="+delimiter, "--execute="+strings.Join(statements, delimiter))
}
