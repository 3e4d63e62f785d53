package sqlitelock

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/holdfast-io/holdfast/internal/retry"
)

// begin starts a transaction that may write. It waits for programs that do not know the
// turnstile, until ctx ends. The error is ErrReplaced where the file is not the one that was opened.
func (s *store) begin(ctx context.Context) error {
	defer s.blocked.Store(nil)
	return untilFree(ctx, func() error {
		if err := s.replaced(); err != nil {
			return err
		}
		err := s.exec(context.WithoutCancel(ctx), "BEGIN IMMEDIATE")
		if busy(err) {
			s.blocked.Store(&err)
		}
		return err
	})
}

func (s *store) commit(ctx context.Context) error { return s.exec(ctx, "COMMIT") }

// rollback ends a transaction, if there is one, without a trace.
func (s *store) rollback(ctx context.Context) {
	_ = s.exec(ctx, "ROLLBACK") // an error means that there was none any more
}

func (s *store) exec(ctx context.Context, query string, args ...any) error {
	stmt, err := s.prepared(ctx, query) //nolint:sqlclosecheck // close does
	if err != nil {
		return err
	}
	if _, err := stmt.ExecContext(ctx, args...); err != nil {
		return said(query, err)
	}
	return nil
}

// read reads one row, once in the life of a connection.
func (s *store) read(ctx context.Context, query string, dest ...any) error {
	if err := s.conn.QueryRowContext(ctx, query).Scan(dest...); err != nil {
		return said(query, err)
	}
	return nil
}

// said adds the beginning of the statement to SQLite's error.
func said(query string, err error) error { return fmt.Errorf("%.40q: %w", query, err) }

func (s *store) prepared(ctx context.Context, query string) (*sql.Stmt, error) {
	if stmt, ok := s.stmts[query]; ok {
		return stmt, nil
	}
	stmt, err := s.conn.PrepareContext(ctx, query)
	if err != nil {
		return nil, said(query, err)
	}
	s.stmts[query] = stmt
	return stmt, nil
}

// untilFree calls f until it does not return that the file is locked: first often, then less
// often, and never in step with other processes.
func untilFree(ctx context.Context, f func() error) error {
	const first, last = 200 * time.Microsecond, 20 * time.Millisecond
	for n := 0; ; n++ {
		err := f()
		if !busy(err) {
			return err
		}
		if !retry.Pause(ctx, retry.Delay(n, first, last)) {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}
