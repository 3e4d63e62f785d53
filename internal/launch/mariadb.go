//go:build unix

package launch

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"syscall"

	_ "github.com/go-sql-driver/mysql" // "mysql" for database/sql
)

// MariaDB returns a server with empty tables, which it creates, and an empty database "test". "root"
// has no password. It runs as the user "mysql" if this process is root's, which MariaDB refuses.
func MariaDB(ctx context.Context, o Options) (*Server, error) {
	s, err := o.server("mariadbd", "", "mysql")
	if err != nil {
		return nil, err
	}
	data := s.Path("data")
	err = o.once(ctx, s, "mariadb-install-db", "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db",
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
	db, err := sql.Open("mysql", "root@tcp("+addr+")/")
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer func() { _ = db.Close() }()
	var dir string
	if err := db.QueryRowContext(ctx, "SELECT @@datadir").Scan(&dir); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if filepath.Clean(dir) != data {
		return errOther
	}
	// A node of Galera refuses every statement about a table until it is ready.
	var users int
	if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM mysql.global_priv").Scan(&users); err != nil {
		return fmt.Errorf("look at a table: %w", err)
	}
	return nil
}
