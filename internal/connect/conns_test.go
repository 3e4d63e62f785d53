package connect_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/connect"
)

// listen returns the address of a server that sends nothing.
func listen(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // of a test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

func dial(t *testing.T, s *connect.Set, addr string) net.Conn {
	t.Helper()
	c, err := s.Dial(new(net.Dialer))(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A connection that is being established while the set is closed does not stay: none outlives it.
func TestClose(t *testing.T) {
	t.Parallel()
	addr := listen(t)
	var s connect.Set
	early, given := dial(t, &s, addr), dial(t, &s, addr)
	if err := given.Close(); err != nil || s.Len() != 1 {
		t.Errorf("%d connections are open: %v", s.Len(), err)
	}
	s.Close()
	if _, err := early.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the connection is open: %v", err)
	}
	if late, err := s.Dial(new(net.Dialer))(t.Context(), "tcp", addr); !errors.Is(err, net.ErrClosed) {
		t.Errorf("connected afterwards: %v, %v", late, err)
	}
}

// A connection that a server never accepts ends when the set is closed.
func TestCloseWhileDialing(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*connect.Set){"Close": (*connect.Set).Close, "HangUp": func(s *connect.Set) { s.HangUp(time.Minute) }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := listen(t)
			var s connect.Set
			dialing, got := make(chan struct{}), make(chan error, 1)
			d := &net.Dialer{ControlContext: func(ctx context.Context, _, _ string, _ syscall.RawConn) error {
				close(dialing)
				<-ctx.Done()
				return ctx.Err()
			}}
			go func() {
				_, err := s.Dial(d)(t.Context(), "tcp", addr)
				got <- err
			}()
			<-dialing
			end(&s)
			select {
			case err := <-got:
				if err == nil {
					t.Error("connected")
				}
			case <-time.After(10 * time.Second):
				t.Error("the connection is still being made")
			}
		})
	}
}

// Nothing lasts longer than HangUp allows: a read that was in progress, a deadline that is
// extended afterwards, and a connection that is established in between.
func TestHangUp(t *testing.T) {
	t.Parallel()
	addr := listen(t)
	var s connect.Set
	reads, patient := dial(t, &s, addr), dial(t, &s, addr)
	got := make(chan error, 1)
	go func() {
		_, err := reads.Read(make([]byte, 1))
		got <- err
	}()
	s.HangUp(10 * time.Millisecond)
	if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a read under way: %v", err)
	}
	for name, set := range map[string]func(time.Time) error{"SetDeadline": patient.SetDeadline, "SetReadDeadline": patient.SetReadDeadline} {
		for _, at := range []time.Time{{}, time.Now().Add(time.Hour)} {
			if err := set(at); err != nil {
				t.Fatal(err)
			}
			if _, err := patient.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s(%s): %v", name, at, err)
			}
		}
	}
	if err := patient.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := patient.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a write: %v", err)
	}
	late, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Add(late); !errors.Is(err, net.ErrClosed) {
		t.Errorf("one that was being made: %v", err)
	}
	if err := late.SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("it is open: %v", err)
	}
}

// A client library can check whether the other side has closed a connection.
func TestRaw(t *testing.T) {
	t.Parallel()
	var s connect.Set
	c := dial(t, &s, listen(t))
	defer c.Close()
	if _, ok := c.(syscall.Conn); !ok {
		t.Error("a TCP connection hides its file descriptor")
	}
	near, far := net.Pipe()
	defer far.Close()
	piped, err := s.Add(near)
	if err != nil {
		t.Fatal(err)
	}
	defer piped.Close()
	if _, ok := piped.(syscall.Conn); ok {
		t.Error("one without a descriptor says that it has one")
	}
}
