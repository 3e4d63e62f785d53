package mysqllock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func openSession(t *testing.T, b backend.Backend) error {
	t.Helper()
	return b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
}

// Tables of a later version, a replica, also for users who may write there, and a server that
// forgets are refused. So is one that refuses READ COMMITTED, with a code that is not known to pass.
func TestRefusedServers(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.MariaDB(t, "log-bin")
	refused(t, s, "test.holdfast_meta", func() backend.Backend { return open(t, s.URL()) })
}

// refused puts the server, and the table with the version, into states in which the backends that
// are opened refuse them, and back.
func refused(t *testing.T, s *testserver.MariaDBServer, meta string, opened func() backend.Backend) {
	t.Helper()
	for _, c := range []struct {
		name, before, after string
		want, kind          error
	}{
		{"fine", "SELECT 1", "SELECT 1", nil, nil},
		{
			"a later version", "UPDATE " + meta + " SET version = version + 1", "UPDATE " + meta + " SET version = version - 1",
			mysqllock.ErrNewer, backend.ErrUnsupported,
		},
		{
			"an earlier version", "UPDATE " + meta + " SET version = version - 1", "UPDATE " + meta + " SET version = version + 1",
			mysqllock.ErrOlder, backend.ErrUnsupported,
		},
		{"a replica", "SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0", mysqllock.ErrReadOnly, backend.ErrUnavailable},
		{
			"forgetful", "SET GLOBAL innodb_flush_log_at_trx_commit = 0", "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
			mysqllock.ErrForgetful, backend.ErrUnsupported,
		},
		{
			"a binary log of statements", "SET GLOBAL binlog_format = STATEMENT", "SET GLOBAL binlog_format = MIXED",
			backend.ErrRefused, backend.ErrUnavailable,
		},
	} {
		s.Exec(c.before)
		err := openSession(t, opened())
		if !errors.Is(err, c.want) || !errors.Is(err, c.kind) {
			t.Errorf("%s: %v", c.name, err)
		}
		s.Exec(c.after)
	}
}

// Settings that weaken the guarantees are reported.
func TestExamine(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	b := open(t, s.URL())
	var _ backend.Examiner = b
	found, err := b.Examine(leasetest.Within(t))
	if err != nil || len(found) != 0 {
		t.Errorf("a server as it comes: %v, %v", found, err)
	}
	s.Exec("SET GLOBAL innodb_flush_log_at_trx_commit = 2", "SET GLOBAL read_only = 1")
	found, err = b.Examine(leasetest.Within(t))
	if err != nil || len(found) != 2 || !strings.Contains(found[0].Text, "innodb_flush_log_at_trx_commit is 2") || !strings.Contains(found[1].Text, "read-only") {
		t.Errorf("%v, %v", found, err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Examine(leasetest.Within(t)); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
