package program

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/internal/connect"
)

// Secure makes the handshake of TLS on a connection, within timeout. Redis without TLS never answers one. After
// an error the connection is closed.
func Secure(ctx context.Context, conn net.Conn, conf *tls.Config, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	secure := tls.Client(conn, conf)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%w: %s", err, connect.Check)
	}
	return secure, nil
}

// LastWords returns a connection without TLS to a server that may refuse it with an error, and close it. Client
// libraries send several commands first, and report only the end of the connection. It reports the error that
// the server sent before the end, as a *ServerError, if it sent nothing else.
func LastWords(conn net.Conn) net.Conn {
	w := &refusable{Conn: conn}
	if raw, ok := conn.(syscall.Conn); ok {
		return rawRefusable{w, raw}
	}
	return w
}

type refusable struct {
	net.Conn
	read atomic.Bool           // something was read
	said atomic.Pointer[error] // what the server sent; nil: nothing, or something else than one error
}

// rawRefusable lets a client library check whether the other side is still there.
type rawRefusable struct {
	*refusable
	syscall.Conn
}

// Read reads from the connection.
func (r *refusable) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	if n == 0 {
		return n, r.reason(err)
	}
	first := !r.read.Swap(true)
	text, minus := bytes.CutPrefix(p[:n], []byte("-"))
	line, rest, ended := bytes.Cut(text, []byte("\r\n"))
	if first && minus && ended && len(rest) == 0 {
		said := FromServer(string(line))
		r.said.Store(&said)
	} else {
		r.said.Store(nil)
	}
	return n, err //nolint:wrapcheck // it stands in for the connection
}

// Write writes to the connection. If that has ended before anything was read, Write reads what the server has sent.
func (r *refusable) Write(p []byte) (int, error) {
	const wait, most = time.Second, 512
	n, err := r.Conn.Write(p)
	if hasEnded(err) && !r.read.Load() && r.SetReadDeadline(time.Now().Add(wait)) == nil {
		_, _ = r.Read(make([]byte, most))
	}
	return n, r.reason(err)
}

// reason returns what the server has said instead of the end of the connection, or what to check.
func (r *refusable) reason(err error) error {
	switch said := r.said.Load(); {
	case !hasEnded(err):
		return err
	case said != nil:
		return *said
	case !r.read.Load():
		return fmt.Errorf("%w: %s", err, connect.Check)
	}
	return err
}

func hasEnded(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// NewClient creates a client of one server, which it connects to. For connections that a DialCtxFn makes, without TLS,
// see LastWords.
func NewClient(option rueidis.ClientOption) (rueidis.Client, error) {
	if dial := option.DialCtxFn; dial != nil && option.TLSConfig == nil {
		option.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, secure *tls.Config) (net.Conn, error) {
			conn, err := dial(ctx, addr, d, secure)
			if err != nil {
				return nil, err
			}
			return LastWords(conn), nil
		}
	}
	client, err := rueidis.NewClient(option)
	if err != nil && client != nil {
		client.Close()
		client = nil
	}
	return client, err //nolint:wrapcheck // the caller maps it
}
