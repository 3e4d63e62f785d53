// Package speaks finds out, after a connection to a server failed, whether one side speaks TLS and the other
// one does not. Such a connection only ends or hangs, as it does with a server that restarts. So the server is
// asked, on another connection, in the way that it was not spoken to. Only an answer counts: it proves the
// mistake, which no retry mends.
package speaks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	// ErrPlain: the server speaks plain text where TLS was begun.
	ErrPlain = errors.New("the server answers in plain text, without TLS")
	// ErrTLS: the server speaks TLS where plain text was sent.
	ErrTLS = errors.New("the server answers with TLS only")
)

const (
	// patience bounds the question to a server. Servers answer it within milliseconds.
	patience = 2 * time.Second
	// late is how long a handshake may take before the server is asked. Redis never answers a handshake: it
	// waits for the end of what it takes for a command.
	late = 500 * time.Millisecond
)

// Dial makes another connection to the same address, without TLS.
type Dial func(ctx context.Context) (net.Conn, error)

// To returns a Dial to an address.
func To(network, addr string) Dial {
	return func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, network, addr) }
}

// Question is what a server that speaks plain text answers without login.
type Question struct {
	// Ask is what is sent.
	Ask string
	// Known reports whether the beginning of an answer is that of such a server.
	Known func(answer []byte) bool
}

// Handshake makes the handshake of a client, within ctx. Errors: ErrPlain, and the error of the handshake.
// After an error the connection is closed.
func Handshake(ctx context.Context, conn *tls.Conn, q Question, again Dial) error {
	shaking, end := context.WithCancelCause(ctx)
	asked := make(chan struct{})
	timer := time.AfterFunc(late, func() {
		defer close(asked)
		if q.answered(shaking, again) {
			end(ErrPlain)
		}
	})
	err := conn.HandshakeContext(shaking)
	plain := errors.Is(context.Cause(shaking), ErrPlain)
	end(nil)
	if !timer.Stop() {
		<-asked
	}
	if err == nil {
		return nil
	}
	_ = conn.Close()
	if plain {
		return ErrPlain
	}
	return Plain(ctx, err, q, again)
}

// Dialed is Handshake for a dialer that also makes the handshake, and that nothing may end before its own
// time-out. After ErrPlain it continues in the background until then.
func Dialed(ctx context.Context, dial Dial, q Question, again Dial) (net.Conn, error) {
	type made struct {
		conn net.Conn
		err  error
	}
	done := make(chan made, 1)
	go func() {
		conn, err := dial(ctx)
		done <- made{conn, err}
	}()
	timer := time.NewTimer(late / 2) // a client library dials more than once before it reports an error
	defer timer.Stop()
	select {
	case m := <-done:
		return m.conn, Plain(ctx, m.err, q, again)
	case <-timer.C:
	}
	plain := make(chan bool, 1)
	go func() { plain <- q.answered(ctx, again) }()
	select {
	case m := <-done:
		return m.conn, m.err
	case is := <-plain:
		if !is {
			m := <-done
			return m.conn, m.err
		}
	}
	timer.Reset(late / 5) // a server that speaks both may be slow with the handshake
	select {
	case m := <-done:
		return m.conn, m.err
	case <-timer.C:
	}
	go func() {
		if m := <-done; m.err == nil {
			_ = m.conn.Close()
		}
	}()
	return nil, ErrPlain
}

// Plain returns the error of a handshake, with ErrPlain if that is the reason.
func Plain(ctx context.Context, err error, q Question, again Dial) error {
	if ended(err) && q.answered(ctx, again) {
		return fmt.Errorf("%w (%w)", ErrPlain, err)
	}
	return err
}

// TLS returns the error of a connection in plain text that the server has answered nothing on, with ErrTLS if
// that is the reason. A server that speaks both is asked in plain text before and after: it may have restarted.
func TLS(ctx context.Context, err error, q Question, again Dial) error {
	if ended(err) && !q.answered(ctx, again) && shakes(ctx, again) && !q.answered(ctx, again) {
		return fmt.Errorf("%w (%w)", ErrTLS, err)
	}
	return err
}

// ended reports whether the server has ended the connection. A server that restarts does that too.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.EPIPE)
}

func (q Question) answered(ctx context.Context, again Dial) bool {
	const most = 64
	answer := make([]byte, 0, most)
	return ask(ctx, again, func(conn net.Conn) bool {
		if _, err := io.WriteString(conn, q.Ask); err != nil {
			return false
		}
		for len(answer) < most {
			n, err := conn.Read(answer[len(answer):most])
			answer = answer[:len(answer)+n]
			if q.Known(answer) {
				return true
			}
			if err != nil {
				return false
			}
		}
		return false
	})
}

// shakes reports whether the server takes part in a handshake. Its certificate is of no interest here: nothing
// is sent.
func shakes(ctx context.Context, again Dial) bool {
	return ask(ctx, again, func(conn net.Conn) bool {
		err := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}).HandshakeContext(ctx) //nolint:gosec // see above
		alert, ok := errors.AsType[*net.OpError](err)
		return err == nil || ok && alert.Op == "remote error" // such as that it demands a certificate
	})
}

func ask(ctx context.Context, again Dial, about func(net.Conn) bool) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := again(ctx)
	if err != nil {
		return false
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() { _ = conn.Close() }()
	return about(conn)
}

// Watch returns a connection that passes the error of the first Read, nil if the server has answered, to
// first, and returns what that returns.
//
// A server that refuses a client may have said why and closed the connection before the client has written. The reason
// is then still to be read, so a Write that fails before that reads it, or waits for the Read that is in progress.
func Watch(conn net.Conn, first func(error) error) net.Conn {
	w := &watched{Conn: conn, first: first, answered: make(chan struct{})}
	if raw, ok := conn.(syscall.Conn); ok {
		return rawWatched{w, raw}
	}
	return w
}

type watched struct {
	net.Conn
	first    func(error) error
	asked    atomic.Bool   // the first Read has begun
	answered chan struct{} // closed when it has ended
}

// rawWatched lets a client library check whether the other side is still there.
type rawWatched struct {
	*watched
	syscall.Conn
}

func (w *watched) Read(p []byte) (int, error) {
	if !w.asked.CompareAndSwap(false, true) {
		return w.Conn.Read(p) //nolint:wrapcheck // it stands in for the connection
	}
	defer close(w.answered)
	n, err := w.Conn.Read(p)
	if n > 0 {
		_ = w.first(nil)
	} else {
		err = w.first(err)
	}
	return n, err
}

func (w *watched) Write(p []byte) (int, error) {
	const wait = time.Second // what was said is there already
	n, err := w.Conn.Write(p)
	if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		return n, err //nolint:wrapcheck // it stands in for the connection
	}
	if !w.asked.Load() {
		if failed := w.SetReadDeadline(time.Now().Add(wait)); failed != nil {
			return n, err //nolint:wrapcheck // as above: it is closed
		}
		if got, why := w.Read(make([]byte, 1)); got == 0 && why != nil && !errors.Is(why, os.ErrDeadlineExceeded) {
			return n, why
		}
	}
	late := time.NewTimer(wait)
	defer late.Stop()
	select {
	case <-w.answered:
	case <-late.C:
	}
	return n, err //nolint:wrapcheck // it stands in for the connection
}
