package connect

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// FirstRead returns a connection that passes the error of the first Read, nil if the server has answered, to
// first, and returns what that returns.
//
// A server that refuses a client may have said why and closed the connection before the client has written. The reason
// is then still to be read, so a Write that fails before that reads it, or waits for the Read that is in progress.
func FirstRead(conn net.Conn, first func(error) error) net.Conn {
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
