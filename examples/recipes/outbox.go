package recipes

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/holdfast-io/holdfast/rowlock"
)

// Message is something to be done outside of the database: a charge, an e-mail.
type Message struct {
	// Key is the idempotency key. It stays the same when the message is sent again.
	Key  string
	Body string
}

// Outbox is a table of messages, as this makes it:
//
//	CREATE TABLE outbox (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key TEXT UNIQUE NOT NULL, body TEXT NOT NULL,
//		sent BOOLEAN NOT NULL DEFAULT false);
//	CREATE INDEX outbox_unsent ON outbox (id) WHERE NOT sent;
type Outbox struct {
	DB *sql.DB // PostgreSQL. Required.
}

// Put has a message sent if the transaction commits, and not otherwise. A key that was put before is left as it is.
func (o *Outbox) Put(ctx context.Context, tx *sql.Tx, m Message) error {
	if _, err := tx.ExecContext(ctx, "INSERT INTO outbox (key, body) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING", m.Key, m.Body); err != nil {
		return fmt.Errorf("put message %q: %w", m.Key, err)
	}
	return nil
}

// Send sends the next message that no other program is sending, and reports whether there was one. Any number of
// programs call it, again and again. The row is locked while the message is on its way (SKIP LOCKED), so no two programs
// send it at the same time, and when one dies, another sends it.
//
// A message is sent once or more: when the answer, or the commit after it, is lost, it is sent again. So send passes the
// key on, and the receiver does nothing for a key that it knows.
//
// Errors: what send returned; those of the database. The message is sent again.
func (o *Outbox) Send(ctx context.Context, send func(context.Context, Message) error) (bool, error) {
	rows, err := rowlock.New(rowlock.Postgres, rowlock.Config{Table: "outbox", Key: "id"})
	if err != nil {
		return false, err
	}
	tx, err := o.DB.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return false, fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to roll back
	var id int64
	var m Message
	n, err := rows.Claim(ctx, rowlock.SQL(tx), rowlock.Batch{
		Limit: 1, Where: "NOT sent", Columns: []string{"id", "key", "body"},
		Scan: func(row rowlock.Row) error { return row.Scan(&id, &m.Key, &m.Body) },
	})
	if err != nil || n == 0 {
		return false, err
	}
	if err := send(ctx, m); err != nil {
		return true, fmt.Errorf("send message %q: %w", m.Key, err)
	}
	if _, err := tx.ExecContext(ctx, "UPDATE outbox SET sent = true WHERE id = $1", id); err != nil {
		return true, fmt.Errorf("message %q was sent: %w", m.Key, err)
	}
	if err := tx.Commit(); err != nil {
		return true, fmt.Errorf("message %q was sent: %w", m.Key, err)
	}
	return true, nil
}
