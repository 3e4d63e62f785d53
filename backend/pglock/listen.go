package pglock

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
)

// listener is who wants to know of the losses of a session.
type listener struct {
	tell func(backend.Loss)
	told map[backend.LeaseID]struct{} // so that a second look tells nothing twice
	open bool                         // the server has said so: there is a row to look at
}

const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
	// echoTime is how long a notification that a value sends itself may take before it
	// is taken for lost: there is a pooler in between.
	echoTime = 5 * time.Second
)

var errNoEcho = errors.New("notifications do not arrive: is a pooler in between? Use listen=false with it")

// listenForLetters has the one connection that notifications come over, from the first
// time that somebody uses the backend. Whenever it is made anew everything is looked
// at: what was said meanwhile is lost.
func (b *Backend) listenForLetters() {
	select {
	case <-b.toListen:
	case <-b.life.Done():
		return
	}
	pause := firstPause
	for b.life.Err() == nil {
		from := time.Now()
		err := b.listen(b.life)
		b.mu.Lock()
		b.hearing = false
		b.mu.Unlock()
		if b.life.Err() != nil {
			return
		}
		b.log.Warn("the connection for notifications ended", slog.String("backend", backendName), slog.String("error", err.Error()))
		b.lookAll()
		if time.Since(from) > lastPause {
			pause = firstPause
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-b.life.Done():
			timer.Stop()
			return
		}
		pause = min(2*pause, lastPause)
	}
}

// listen makes the connection and takes what comes, until it breaks.
func (b *Backend) listen(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, b.conf)
	if err != nil {
		return err //nolint:wrapcheck // it is logged
	}
	defer hangUp(conn)
	if _, err := conn.Exec(ctx, "LISTEN "+b.addr); err != nil {
		return err //nolint:wrapcheck // it is logged
	}
	if err := b.hearEcho(ctx, conn); err != nil {
		return err
	}
	b.mu.Lock()
	b.hearing = true
	b.mu.Unlock()
	b.lookAll()
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err //nolint:wrapcheck // it is logged
		}
		b.read(n.Payload)
	}
}

// hearEcho checks that what other connections notify arrives.
func (b *Backend) hearEcho(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, echoTime, errNoEcho)
	defer cancel()
	if _, err := b.pool.Exec(ctx, `SELECT pg_notify($1, $2)`, b.addr, string(lineHello)); err != nil {
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
		if b.read(n.Payload) {
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

// read does what a letter says, and reports whether it is the echo.
func (b *Backend) read(payload string) bool {
	look, granted, hello := decodeLetter(payload)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range granted {
		for _, w := range b.waiting[n.key] {
			if w.timed || !w.inLine || w.session != n.session {
				look.lookAt(n.key)
			} else if n.place > w.place { // or it is of another time in line
				n.grant.Asked = w.asked
				w.give(verdict{grant: n.grant})
			}
		}
	}
	for k := range look.leases {
		if len(b.waiting[k]) > 0 {
			b.look.lookAt(k)
		}
	}
	for id := range look.sessions {
		b.look.session(id)
	}
	if len(look.leases)+len(look.sessions) > 0 {
		kick(b.toLook)
	}
	return hello
}

// tellLoss tells a loss to the listener of the session, once.
func (b *Backend) tellLoss(x backend.Loss) {
	b.mu.Lock()
	l, ok := b.sessions[x.Session]
	if ok {
		if _, again := l.told[x.Lease]; again || b.closed {
			ok = false
		}
		l.told[x.Lease] = struct{}{}
	}
	if x.Lease == "" {
		delete(b.sessions, x.Session)
	}
	b.mu.Unlock()
	if ok {
		l.tell(x)
	}
}

func scanDead(rows pgx.Rows, losses *[]backend.Loss) error {
	return each(rows, func() error {
		var x backend.Loss
		var alive bool
		err := rows.Scan(&x.Session, &x.Cause, &alive)
		if !alive {
			if x.Cause == "" {
				x.Cause = backend.CauseExpired
			}
			*losses = append(*losses, x)
		}
		return err //nolint:wrapcheck // see unavailable
	})
}

func scanLosses(rows pgx.Rows, losses *[]backend.Loss) error {
	return each(rows, func() error {
		var x backend.Loss
		err := rows.Scan(&x.Session, &x.Lease, &x.Cause, &x.Reason)
		*losses = append(*losses, x)
		return err //nolint:wrapcheck // see unavailable
	})
}
