package speaks_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/certs"
	"github.com/holdfast-io/holdfast/internal/leaktest"
	"github.com/holdfast-io/holdfast/internal/speaks"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// serve passes each connection to handle, and returns the address.
func serve(t *testing.T, handle func(net.Conn)) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				handle(conn)
			}()
		}
	}()
	return l.Addr().String()
}

// answerPing answers a ping, and nothing else, as Redis does.
func answerPing(conn net.Conn) {
	var got []byte
	buf := make([]byte, 1024)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		if got = append(got, buf[:n]...); bytes.HasPrefix(got, []byte("PING\r\n")) {
			_, _ = io.WriteString(conn, "+PONG\r\n")
		}
	}
}

func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_, _ = conn.Read(make([]byte, 1))
		_ = tcp.SetLinger(0)
	}
}

func question() speaks.Question {
	return speaks.Question{Ask: "PING\r\n", Known: func(answer []byte) bool { return bytes.HasPrefix(answer, []byte("+PONG")) }}
}

// secure returns the configurations of a server, and of a client that trusts it.
func secure(t *testing.T) (*tls.Config, *tls.Config) {
	t.Helper()
	files, err := certs.Loopback(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(files.ServerCert, files.ServerKey)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}, &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// A handshake fails with ErrPlain only where the server has answered in plain text.
func TestHandshake(t *testing.T) {
	t.Parallel()
	server, client := secure(t)
	always := func(handle func(net.Conn)) func() func(net.Conn) {
		return func() func(net.Conn) { return handle }
	}
	for name, tc := range map[string]struct {
		handle func() func(net.Conn) // of a new server
		want   error
	}{
		"a server with TLS": {always(func(c net.Conn) { _, _ = io.Copy(io.Discard, tls.Server(c, server)) }), nil},
		"a server without":  {always(answerPing), speaks.ErrPlain},
		"one that ends the handshake, and answers in plain text": {endsTheFirst, speaks.ErrPlain},
		"one that ends every connection":                         {always(reset), errOther},
		"one that answers otherwise": {always(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
		}), errOther},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, connect := range []func(t *testing.T, addr string, client *tls.Config) error{handshake, dialed} {
				var err error
				for tries := 5; tries > 0; tries-- {
					err = connect(t, serve(t, tc.handle()), client)
					if !errors.Is(tc.want, speaks.ErrPlain) || errors.Is(err, speaks.ErrPlain) {
						break
					}
					t.Log(err) // the machine may have stood still for longer than a question to the server lasts
				}
				check(t, err, tc.want)
			}
		})
	}
	t.Run("one that hangs", func(t *testing.T) {
		t.Parallel()
		addr := serve(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
		conn, err := speaks.To("tcp", addr)(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // longer than the handshake is given
		defer cancel()
		check(t, speaks.Handshake(ctx, tls.Client(conn, client), question(), speaks.To("tcp", addr)), context.DeadlineExceeded)
	})
}

// endsTheFirst ends the first connection, and answers in plain text on the others.
func endsTheFirst() func(net.Conn) {
	first := make(chan struct{}, 1)
	first <- struct{}{}
	return func(c net.Conn) {
		select {
		case <-first:
			reset(c)
		default:
			answerPing(c)
		}
	}
}

func handshake(t *testing.T, addr string, client *tls.Config) error {
	t.Helper()
	conn, err := speaks.To("tcp", addr)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return speaks.Handshake(within(t), tls.Client(conn, client), question(), speaks.To("tcp", addr))
}

// dialed has a dialer that makes the handshake itself, and does not end with its context, but with its own time-out.
func dialed(t *testing.T, addr string, client *tls.Config) error {
	t.Helper()
	dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: 20 * time.Second}, Config: client}
	conn, err := speaks.Dialed(within(t), func(context.Context) (net.Conn, error) {
		return dialer.DialContext(t.Context(), "tcp", addr)
	}, question(), speaks.To("tcp", addr))
	if err == nil {
		_ = conn.Close()
	}
	return err
}

var errOther = errors.New("any other error")

func check(t *testing.T, err, want error) {
	t.Helper()
	switch definite := errors.Is(err, speaks.ErrPlain) || errors.Is(err, speaks.ErrTLS); {
	case want == nil && err != nil, want != nil && err == nil:
	case errors.Is(want, errOther) && !definite, errors.Is(err, want):
		return
	}
	t.Errorf("%v; want %v", err, want)
}

// A connection fails with ErrTLS only where the server has taken part in a handshake, and answers nothing in
// plain text.
func TestTLS(t *testing.T) {
	t.Parallel()
	server, _ := secure(t)
	demanding := server.Clone()
	demanding.ClientAuth, demanding.MaxVersion = tls.RequireAnyClientCert, tls.VersionTLS12
	shake := func(conf *tls.Config) func(net.Conn) {
		return func(c net.Conn) { _, _ = io.Copy(io.Discard, tls.Server(c, conf)) }
	}
	for name, tc := range map[string]struct {
		handle func(net.Conn)
		want   error
	}{
		"a server with TLS":               {shake(server), speaks.ErrTLS},
		"one that demands a certificate":  {shake(demanding), speaks.ErrTLS},
		"a server without":                {answerPing, errOther},
		"one that ends every connection":  {reset, errOther},
		"one that speaks both":            {both(server), errOther},
		"one that answers the ping later": {answersLater(server), errOther},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, speaks.TLS(within(t), io.EOF, question(), speaks.To("tcp", serve(t, tc.handle))), tc.want)
		})
	}
	if err := speaks.TLS(within(t), errOther, question(), speaks.To("tcp", serve(t, shake(server)))); !errors.Is(err, errOther) || errors.Is(err, speaks.ErrTLS) {
		t.Errorf("after another error than the end of a connection: %v", err)
	}
}

// both speaks TLS to a client that begins a handshake, and plain text to others.
func both(conf *tls.Config) func(net.Conn) {
	return func(c net.Conn) {
		start := make([]byte, 1)
		if _, err := io.ReadFull(c, start); err != nil {
			return
		}
		again := prefixed{c, io.MultiReader(bytes.NewReader(start), c)}
		if start[0] == 'P' {
			answerPing(again)
			return
		}
		_, _ = io.Copy(io.Discard, tls.Server(again, conf))
	}
}

// answersLater is both, but for the first connection, which it ends: it restarts.
func answersLater(conf *tls.Config) func(net.Conn) {
	first := make(chan struct{}, 1)
	first <- struct{}{}
	return func(c net.Conn) {
		select {
		case <-first:
			reset(c)
		default:
			both(conf)(c)
		}
	}
}

type prefixed struct {
	net.Conn
	r io.Reader
}

func (p prefixed) Read(b []byte) (int, error) { return p.r.Read(b) }

// The first Read reports what first returns, and the others what they get.
func TestWatch(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{"an answer": "ab", "none": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := speaks.To("tcp", serve(t, func(c net.Conn) { _, _ = io.WriteString(c, answer) }))(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			var seen []error
			watched := speaks.Watch(conn, func(err error) error { seen = append(seen, err); return errors.Join(errOther, err) })
			got, err := io.ReadAll(watched)
			if string(got) != answer || len(seen) != 1 || (seen[0] == nil) != (answer != "") || errors.Is(err, errOther) != (answer == "") {
				t.Errorf("%q, %v, after %v", got, err, seen)
			}
		})
	}
}

// hungUp is a connection that the other side has closed after it said why.
type hungUp struct {
	net.Conn
	why     error
	reading chan struct{} // closed by the first Read
	told    chan struct{} // Read returns when it is closed
}

func (h *hungUp) Write([]byte) (int, error)       { return 0, syscall.EPIPE }
func (h *hungUp) SetReadDeadline(time.Time) error { return nil }

func (h *hungUp) Read([]byte) (int, error) {
	close(h.reading)
	<-h.told
	return 0, h.why
}

// A Write that fails because the server has refused the client and is gone learns why: it reads that, or waits until
// the Read that is in progress has.
func TestWatchedWriteLearnsWhy(t *testing.T) {
	t.Parallel()
	watch := func() (*hungUp, net.Conn, *error) {
		h := &hungUp{why: errOther, reading: make(chan struct{}), told: make(chan struct{})}
		var seen error
		return h, speaks.Watch(h, func(err error) error { seen = err; return err }), &seen
	}
	t.Run("nobody reads", func(t *testing.T) {
		t.Parallel()
		h, conn, seen := watch()
		close(h.told)
		if _, err := conn.Write([]byte("a")); !errors.Is(err, errOther) || !errors.Is(*seen, errOther) {
			t.Errorf("%v, after %v", err, *seen)
		}
	})
	t.Run("a Read is in progress", func(t *testing.T) {
		t.Parallel()
		h, conn, seen := watch()
		read := make(chan error)
		go func() {
			_, err := conn.Read(nil)
			read <- err
		}()
		<-h.reading
		time.AfterFunc(20*time.Millisecond, func() { close(h.told) })
		if _, err := conn.Write([]byte("a")); !errors.Is(err, syscall.EPIPE) || !errors.Is(*seen, errOther) {
			t.Errorf("%v, after %v", err, *seen)
		}
		if err := <-read; !errors.Is(err, errOther) {
			t.Errorf("Read: %v", err)
		}
	})
}
