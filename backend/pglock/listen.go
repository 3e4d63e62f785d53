package pglock

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/sqllease"
)

const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
	// echoTime is how long a notification that a value sends itself may take before it counts as
	// lost: there is a pooler in between.
	echoTime = 5 * time.Second
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
	if err := b.hearEcho(ctx, conn); err != nil {
		return err
	}
	b.leases.Hearing(true)
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err //nolint:wrapcheck // it is logged
		}
		b.leases.Read(n.Payload)
	}
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

// hangUp closes a connection, and does not wait for the other side.
func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), hangUpTime)
	defer cancel()
	_ = conn.Close(ctx)
}
