package program

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

// A connection that was ended stays so, also when the end comes before the deadline of the request.
func TestLaneStaysEnded(t *testing.T) {
	t.Parallel()
	server, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	l := new(Lane)
	conn, err := l.Dial(func() (net.Conn, error) {
		return new(net.Dialer).DialContext(t.Context(), "tcp", server.Addr().String())
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	other, err := server.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	s := &Lanes{all: []*Lane{l}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l.ctx = ctx
	s.Interrupt() // another request's context has ended
	if l.ended {
		t.Error("ended before the end")
	}
	cancel()
	s.Interrupt()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second)) // of a request that begins now
	_, _ = other.Write([]byte("x"))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || !errors.Is(err, net.ErrClosed) || !l.ended {
		t.Errorf("a late answer was read: %d, %v", n, err)
	}
}
