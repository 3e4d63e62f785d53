package mysqllock_test

import (
	"context"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// hostile starts a server whose settings are the worst for us: all that change what a statement returns, or
// that make it fail. Most of them are in its init_connect, for users who are not administrators.
func hostile(t *testing.T) *testserver.MariaDBServer {
	t.Helper()
	return testserver.MariaDB(t, "transaction-isolation=SERIALIZABLE", "query-cache-type=ON", "query-cache-size=1M", `init-connect=
		SET NAMES gbk, autocommit = 0, completion_type = CHAIN, time_zone = '+05:30', sql_select_limit = 1, max_join_size = 1, sql_big_selects = 0,
			sql_safe_updates = 1, max_sort_length = 8, group_concat_max_len = 4, unique_checks = 0, foreign_key_checks = 0, check_constraint_checks = 0,
			innodb_lock_wait_timeout = 50, innodb_snapshot_isolation = 1, lock_wait_timeout = 1, max_statement_time = 1, sql_auto_is_null = 1,
			sql_buffer_result = 1, big_tables = 1, in_predicate_conversion_threshold = 2, auto_increment_increment = 7, auto_increment_offset = 3,
			default_storage_engine = MyISAM, lc_messages = ja_JP, low_priority_updates = 1, sql_if_exists = 1, optimizer_switch = 'mrr=on,mrr_sort_keys=on';
		SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
		USE information_schema;
		SET sql_mode = 'ANSI,ORACLE,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE,NO_UNSIGNED_SUBTRACTION,NO_AUTO_VALUE_ON_ZERO,PAD_CHAR_TO_FULL_LENGTH,EMPTY_STRING_IS_NULL,SIMULTANEOUS_ASSIGNMENT'`)
}

// TestConformance runs the suite with a user who has the least rights, on a server with hostile settings.
func TestConformance(t *testing.T) {
	t.Parallel()
	s, disk := testserver.WithSlowDisk(t, hostile(t))
	url := leastUser(t, s, "mysql", openLeases, unchecked)
	h := leasetest.Harness(s, disk, testserver.SlowSync, func(ctx context.Context) (backend.Backend, error) { return openLeases(ctx, url) })
	h.Holders = leasetest.Holders(500) // each transaction reads all of them
	backendtest.Run(t, h)
}

// TestConformanceInOtherWays runs the suite with values that take the short way, that never take it, and that inflate
// locks as soon as they were taken, on one server.
func TestConformanceInOtherWays(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.MariaDB(t)
	as := leasetest.Drawn(t,
		func(b *mysqllock.Backend) backend.Backend { return b },
		func(b *mysqllock.Backend) backend.Backend { b.NeverQuick(); return b },
		func(b *mysqllock.Backend) backend.Backend { return leasetest.Inflating{Backend: b} },
	)
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := mysqllock.Open(t.Context(), s.URL(), mysqllock.Config{})
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return as(b)
		},
		Restart:    func(backendtest.T) { s.Restart() },
		Holders:    leasetest.Holders(500),
		NoSlowDisk: "TestConformance has the same server on one",
	})
}
