//go:build linux || darwin || freebsd

package sqlitelock_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"modernc.org/sqlite"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/sqlitelock"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

func TestMain(m *testing.M) {
	if os.Getenv(childJob) != "" {
		os.Exit(child())
	}
	beHostile()
	leaktest.Main(m)
}

// mustOpen opens a file. The backend is closed at the end of the test, if not before.
func mustOpen(t *testing.T, path string, opts ...sqlitelock.Option) *sqlitelock.Backend {
	t.Helper()
	b, err := sqlitelock.OpenWith(t.Context(), path, opts...)
	return leasetest.Opened(t, b, err)
}

// lasting returns a request for a lease with an end of its own.
func lasting(name string) backend.AcquireRequest {
	return backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Timed: true, TTL: time.Hour}
}

// hostile is the name of a file for whose connections the program sets the most hostile pragmas.
const hostile = "hostile.db"

// beHostile registers, for all connections to SQLite of this process, what changes results: pragmas of
// connections to the hostile file, and a function in place of one that our statements call.
func beHostile() {
	sqlite.RegisterConnectionHook(func(conn sqlite.ExecQuerierContext, dsn string) error {
		if !strings.HasSuffix(dsn, sqlitelock.DataSource(hostile)[len("file:"):]) {
			return nil
		}
		for _, p := range []string{
			"encoding = 'UTF-16le'", "locking_mode = EXCLUSIVE", "journal_mode = DELETE", "query_only = ON", "max_page_count = 1",
			"ignore_check_constraints = ON", "reverse_unordered_selects = ON", "case_sensitive_like = ON", "foreign_keys = ON",
			"recursive_triggers = ON", "wal_autocheckpoint = 0", "mmap_size = 1073741824", "synchronous = OFF", "busy_timeout = 3600000",
		} {
			if _, err := conn.ExecContext(context.Background(), "PRAGMA "+p, nil); err != nil {
				return err
			}
		}
		return nil
	})
	sqlite.MustRegisterDeterministicScalarFunction("max", 2, func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
		return nil, errors.New("not the built-in function")
	})
}

// TestConformance runs the suite with many backend values on one file: they share nothing but the
// file. Another program has made it, with settings that stay in it, and this program has hostile ones for
// all of its own connections.
func TestConformance(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), hostile)
	fixture{t, path}.script("PRAGMA page_size = 512; PRAGMA auto_vacuum = FULL; PRAGMA journal_mode = DELETE; CREATE TABLE x (y); DROP TABLE x")
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := sqlitelock.Open(t.Context(), path, sqlitelock.Config{})
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		NoRestart: "there is no server; what survives a crash and a reboot has its own tests",
		TTL:       suiteTTL,
		Holders:   leasetest.Holders(1000), // each transaction reads all of them
	})
}
