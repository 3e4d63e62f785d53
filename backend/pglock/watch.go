package pglock

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
)

const (
	// watchTTL is how long events are sent for a watcher that does not confirm that it is still
	// there.
	watchTTL = 30 * time.Second
	// watchTime bounds a statement of a watcher.
	watchTime = 10 * time.Second
	signOn    = `UPDATE @meta SET watched = greatest(watched, clock_timestamp() + $1::bigint * interval '1 microsecond')`
	// Transactions that began earlier may not know of the watcher. They have written to the table
	// of locks before they read, and this waits until they end.
	barrier = `LOCK TABLE @locks IN SHARE ROW EXCLUSIVE MODE`
	// While there are watchers no lock is thin: what becomes of a thin lease is not published.
	inflate = `WITH k AS (UPDATE @locks SET fat = 1 WHERE lease <> '' AND fat = 0 RETURNING *)
		INSERT INTO @leases (name, lease, addr, held, place, mode, permits, cap, owner, note, timed, ttl,
			token, asked, since, ends, waited, session) SELECT ` + thinLease + ` FROM k`
	stayOn = `WITH was AS (SELECT watched > clock_timestamp() AS on FROM @meta)
		UPDATE @meta SET watched = greatest(watched, clock_timestamp() + $1::bigint * interval '1 microsecond') FROM was RETURNING was.on, ` + halfFull
)

// Watch delivers the events of locks whose names start with req.Prefix, the first of them
// EventWatching, until ctx ends; the error is then ctx's cause. It has a connection of its own.
// Other errors: *InvalidError; ErrUnsupported for a value that does not listen; ErrClosed;
// *UnavailableError when the connection breaks, when the process slept for 30 s, or when the server's queue
// of notifications fills up: events are missing then.
func (b *Backend) Watch(ctx context.Context, req backend.WatchRequest, deliver func(backend.Event)) error {
	const op = "watch"
	if err := backend.ValidatePrefix(req.Prefix); err != nil {
		return err
	}
	if b.deaf {
		return errDeaf
	}
	if err := b.leases.Ready(ctx, op); err != nil {
		return err
	}
	within, leave := backend.Within(ctx, b.life())
	defer leave()
	err := b.watch(within, req.Prefix, deliver)
	switch {
	case b.life().Err() != nil:
		return backend.ErrClosed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return unavailable(op, false, err)
}

func (b *Backend) watch(ctx context.Context, prefix string, deliver func(backend.Event)) error {
	conn, err := b.program.connect(ctx, b.conf)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	now, err := b.beginWatch(ctx, conn)
	if err != nil {
		return err
	}
	b.leases.Watching(1)
	defer b.leases.Watching(-1)
	deliver(backend.Event{Kind: backend.EventWatching, At: now})
	refresh := time.Now().Add(watchTTL / 3)
	for {
		n, err := await(ctx, conn, refresh)
		if err != nil {
			return err
		}
		if n != nil {
			if e, ok := decodeEvent(n.Payload); ok && strings.HasPrefix(e.Name, prefix) {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				deliver(e)
			}
		}
		if time.Now().Before(refresh) {
			continue
		}
		if err := b.stayOn(ctx, conn); err != nil {
			return err
		}
		refresh = time.Now().Add(watchTTL / 3)
	}
}

// beginWatch turns events on and listens to them.
func (b *Backend) beginWatch(ctx context.Context, conn *pgx.Conn) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, watchTime)
	defer cancel()
	var now time.Time
	if _, err := conn.Exec(ctx, "LISTEN "+b.eventChannel); err != nil {
		return now, err //nolint:wrapcheck // see unavailable
	}
	if _, err := conn.Exec(ctx, b.sql(signOn), watchTTL.Microseconds()); err != nil {
		return now, err //nolint:wrapcheck // see unavailable
	}
	q := new(pgx.Batch)
	q.Queue(beginTxn)
	q.Queue(b.sql(barrier))
	q.Queue(b.sql(inflate))
	var full bool
	q.Queue(`SELECT clock_timestamp(), ` + halfFull).QueryRow(func(row pgx.Row) error { return row.Scan(&now, &full) })
	q.Queue(`COMMIT`)
	err := conn.SendBatch(ctx, q).Close()
	if err == nil && full {
		err = errQueueFull
	}
	return now, err
}

// stayOn confirms that the watcher is still there.
func (b *Backend) stayOn(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, watchTime)
	defer cancel()
	var on, full bool
	err := conn.QueryRow(ctx, b.sql(stayOn), watchTTL.Microseconds()).Scan(&on, &full)
	switch {
	case err != nil:
		return err //nolint:wrapcheck // see unavailable
	case !on:
		return errAsleep
	case full:
		return errQueueFull
	}
	return nil
}
