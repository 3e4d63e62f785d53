package program

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// A connection that was ended stays so, also when the end comes before the deadline of the request.
func TestLineStaysEnded(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	l := &line{Conn: a}
	if l.ended() {
		t.Error("ended before the end")
	}
	l.hangUp()
	if err := l.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = b.Write([]byte("x")) }()
	if n, err := l.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || !l.ended() {
		t.Errorf("a late answer was read: %d, %v", n, err)
	}
}
