package mysqllock

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/holdfast-io/holdfast/backend"
)

// facts reads the settings of a server that its promises depend on. Every user may read them.
const (
	facts = `SELECT @@global.innodb_flush_log_at_trx_commit, @@global.innodb_doublewrite, $READONLY, @@global.log_bin, @@global.sync_binlog`
	// Replicas that are connected; without the privilege to see them there are none.
	replicas = `SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'`
	semiSync = `SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_%_status'`
)

// Examine checks the settings of the server: whether what it has committed survives a crash and a
// fail-over. It also checks whether the user lacks a right. It implements backend.Examiner.
func (b *Backend) Examine(ctx context.Context) ([]backend.Finding, error) {
	var flush, syncLog, standbys int
	var doublewrite string
	var readOnly, log, waits bool
	q := new(batch)
	q.query(func(r *sql.Rows) error { return r.Scan(&flush, &doublewrite, &readOnly, &log, &syncLog) }, b.sql(facts))
	q.query(func(r *sql.Rows) error { return r.Scan(&standbys) }, replicas)
	q.query(func(r *sql.Rows) error {
		var name, value string
		err := r.Scan(&name, &value)
		waits = waits || value == "ON"
		return err //nolint:wrapcheck // see Unavailable
	}, semiSync)
	var out []string
	err := b.leases.Setup(ctx, "examine", func(ctx context.Context) error {
		var err error
		if out, err = b.rights().findings(ctx); err != nil {
			return err
		}
		return q.run(ctx, b.db)
	})
	if err != nil {
		return nil, err
	}
	found := func(bad bool, text string) {
		if bad {
			out = append(out, text)
		}
	}
	found(flush != 1, fmt.Sprintf("innodb_flush_log_at_trx_commit is %d: a crash of the machine loses grants, and a lock may then be granted twice", flush))
	found(doublewrite == "0" || doublewrite == "OFF", "innodb_doublewrite is off: a crash of the machine can damage the tables")
	found(readOnly, "this server is read-only: it takes no locks")
	found(log && syncLog != 1, fmt.Sprintf("sync_binlog is %d: a crash of the machine loses grants, and a lock may then be granted twice", syncLog))
	found(standbys > 0 && !waits, fmt.Sprintf("%d replicas replicate asynchronously: a fail-over loses the newest grants, and a lock may then be granted twice", standbys))
	return backend.Findings(false, out...), nil
}

// Examine checks whether the user lacks a right. It implements backend.Examiner.
func (b *UserLocks) Examine(ctx context.Context) ([]backend.Finding, error) {
	out, err := b.rights().findings(ctx)
	if err != nil {
		return nil, getlockStore{b}.Unavailable("examine", false, err)
	}
	return backend.Findings(false, out...), nil
}
