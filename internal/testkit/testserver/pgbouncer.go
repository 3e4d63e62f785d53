//go:build unix

package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/launch"
)

// PgBouncer starts a pooler in front of the server and returns its address. mode is PgBouncer's
// pool_mode: "session", or "transaction", which uses any free connection for each transaction.
// settings are lines added to its file. It ends with the test.
func PgBouncer(t testing.TB, s *PostgresServer, mode string, settings ...string) string {
	t.Helper()
	dir, port := Dir(t), FreePort(t)
	users, ini := filepath.Join(dir, "users.txt"), filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = %s
default_pool_size = 20
max_client_conn = 200
%s
`, launch.Port(s.Addr()), port, users, mode, strings.Join(settings, "\n"))
	for name, text := range map[string]string{users: `"postgres" ""` + "\n", ini: text} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil { //nolint:gosec // it may run as another user
			t.Fatalf("testserver: %v", err)
		}
	}
	program, err := launch.Options{}.Program("pgbouncer")
	check(t, errors.Join(err, launch.Chown(dir, s.Account())))
	addr := "127.0.0.1:" + strconv.Itoa(port)
	p := Start(t, Command{Path: program[0], Dir: dir, Account: s.Account(), Args: []string{ini}})
	p.Await(startTimeout, func(ctx context.Context) error {
		_, err := launch.PostgresRun(ctx, s.URLOf("postgres", addr), "SELECT 1")
		return err
	})
	return addr
}
