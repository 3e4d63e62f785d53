package pglock

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/sqllease"
)

const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
	// echoTime is how long a notification that a value sends itself may take before it counts as
	// lost: there is a pooler in between.
	echoTime = 5 * time.Second
	// checkEvery is how often the queue of notifications is checked while there are waiters.
	checkEvery = 5 * time.Second
)

var errNoEcho = errors.New("notifications do not arrive: is a pooler in between? Use listen=false with it")

// listenForNotifications keeps the one connection that notifications arrive on, from the first use of
// the backend. Whenever the connection is replaced everything is read, because notifications were
// lost.
func (b *Backend) listenForNotifications() {
	select {
	case <-b.toListen:
	case <-b.life().Done():
		return
	}
	for failures := 0; ; failures++ {
		from := time.Now()
		err := b.listen(b.life())
		if b.life().Err() != nil {
			return
		}
		b.log.Warn("the connection for notifications ended", slog.String("backend", backendName), slog.String("error", err.Error()))
		b.leases.Hearing(false)
		if time.Since(from) > lastPause {
			failures = 0
		}
		if !retry.Pause(b.life(), retry.Delay(failures, firstPause, lastPause)) {
			return
		}
	}
}

// listen establishes the connection and processes what arrives, until it breaks.
func (b *Backend) listen(ctx context.Context) error {
	conn, err := b.program.connect(ctx, b.conf)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	if _, err := conn.Exec(ctx, "LISTEN "+b.addr); err != nil {
		return err //nolint:wrapcheck // it is logged
	}
	hears := false
	for {
		if hears, err = b.checkQueue(ctx, conn, hears); err != nil {
			return err
		}
		for next := time.Now().Add(checkEvery); time.Now().Before(next); {
			n, err := await(ctx, conn, next)
			if err != nil {
				return err
			}
			if n != nil {
				b.leases.Read(n.Payload)
			}
		}
	}
}

// checkQueue makes waiters poll while the server's queue of notifications fills up. hears is whether they are notified so far;
// the result is whether they are from now on. While they are, and there are none, it sends nothing.
func (b *Backend) checkQueue(ctx context.Context, conn *pgx.Conn, hears bool) (bool, error) {
	if hears && !b.leases.Waiting() {
		return true, nil
	}
	within, cancel := context.WithTimeout(ctx, echoTime)
	defer cancel()
	var full bool
	if err := b.pool.QueryRow(within, `SELECT `+halfFull).Scan(&full); err != nil {
		return false, err //nolint:wrapcheck // it is logged
	}
	switch {
	case full:
		b.notifier.warn()
	case hears:
		return true, nil
	default:
		if err := b.hearEcho(ctx, conn); err != nil {
			return false, err
		}
	}
	b.leases.Hearing(!full)
	return !full, nil
}

// hearEcho checks that notifications of other connections arrive.
func (b *Backend) hearEcho(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, echoTime, errNoEcho)
	defer cancel()
	if _, err := b.pool.Exec(ctx, `SELECT pg_notify($1, $2)`, b.addr, sqllease.Hello); err != nil {
		return err //nolint:wrapcheck // it is logged
	}
	for {
		n, err := conn.WaitForNotification(ctx)
		switch {
		case err != nil && context.Cause(ctx) != nil:
			return context.Cause(ctx)
		case err != nil:
			return err //nolint:wrapcheck // it is logged
		}
		if b.leases.Read(n.Payload) {
			return nil
		}
	}
}

// await waits for a notification until then. Nil: there was none.
func await(ctx context.Context, conn *pgx.Conn, until time.Time) (*pgconn.Notification, error) {
	waiting, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	n, err := conn.WaitForNotification(waiting)
	if err != nil && ctx.Err() == nil && waiting.Err() != nil && !conn.IsClosed() {
		return nil, nil //nolint:nilnil // nothing arrived
	}
	return n, err //nolint:wrapcheck // the caller does
}

// hangUp closes a connection, and does not wait for the other side.
func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), hangUpTime)
	defer cancel()
	_ = conn.Close(ctx)
}
