package chaos_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
)

// patience bounds every wait for something that must happen; quiet is how long a test watches
// for something that must not. A busy machine can hide a broken silence, but never make a
// correct one fail.
const (
	patience = 30 * time.Second
	quiet    = 30 * time.Millisecond
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// upstream is a server whose connections the test itself holds.
type upstream struct {
	net.Listener
	conns chan net.Conn
}

func listen(t *testing.T) *upstream {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{Listener: l, conns: make(chan net.Conn, 1000)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			u.conns <- c
		}
	}()
	t.Cleanup(func() {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		<-done
	})
	return u
}

// accepted returns the next connection that the server sees.
func (u *upstream) accepted(t *testing.T) net.Conn {
	t.Helper()
	select {
	case c := <-u.conns:
		return deadline(t, c)
	case <-time.After(patience):
		t.Fatal("the server saw no connection")
		return nil
	}
}

// start starts a proxy in front of a server.
func start(t *testing.T) (*chaos.Proxy, *upstream) {
	t.Helper()
	u := listen(t)
	return chaos.Start(t, u.Addr().String()), u
}

// deadline bounds all reads and writes, and closes the connection in the end.
func deadline(t *testing.T, c net.Conn) net.Conn {
	t.Helper()
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

func tryDial(t *testing.T, p *chaos.Proxy) (net.Conn, error) {
	t.Helper()
	d := net.Dialer{Timeout: patience}
	return d.DialContext(t.Context(), "tcp", p.Addr())
}

func dial(t *testing.T, p *chaos.Proxy) net.Conn {
	t.Helper()
	c, err := tryDial(t, p)
	if err != nil {
		t.Fatal(err)
	}
	return deadline(t, c)
}

// pair returns a connection through the proxy: the client's end, then the server's. Bytes have
// passed, so that all of it is known to be established.
func pair(t *testing.T, p *chaos.Proxy, u *upstream) (net.Conn, net.Conn) {
	t.Helper()
	client := dial(t, p)
	server := u.accepted(t)
	pass(t, client, server, "hello")
	pass(t, server, client, "welcome")
	return client, server
}

func send(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatalf("sending %q: %v", s, err)
	}
}

func expect(t *testing.T, c net.Conn, s string) {
	t.Helper()
	buf := make([]byte, len(s))
	n, err := io.ReadFull(c, buf)
	if err != nil {
		t.Fatalf("expecting %q: %v after %q", s, err, buf[:n])
	}
	if string(buf) != s {
		t.Fatalf("got %q, want %q", buf, s)
	}
}

func pass(t *testing.T, from, to net.Conn, s string) {
	t.Helper()
	send(t, from, s)
	expect(t, to, s)
}

// silent checks that c brings nothing, and is not told of an end.
func silent(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(quiet)); err != nil {
		t.Fatal(err)
	}
	var buf [64]byte
	n, err := c.Read(buf[:])
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %q and %v, want silence", buf[:n], err)
	}
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
}

// ended checks that the next thing that c brings is the end, in order or not.
func ended(t *testing.T, c net.Conn, want error) {
	t.Helper()
	var buf [64]byte
	if n, err := c.Read(buf[:]); n != 0 || !errors.Is(err, want) {
		t.Fatalf("got %q and %v, want %v", buf[:n], err, want)
	}
}

func wait(t *testing.T, p *chaos.Proxy, what string, cond func(chaos.Stats) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.Wait(ctx, cond); err != nil {
		t.Fatalf("waiting until %s: %v; %+v", what, err, p.Stats())
	}
}

const (
	errReset   = syscall.ECONNRESET
	errRefused = syscall.ECONNREFUSED
)
