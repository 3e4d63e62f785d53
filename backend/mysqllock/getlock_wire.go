package mysqllock

import (
	"bufio"
	"context"
	"errors"
	"net"
	"time"
)

var errHungUp = errors.New("the server ended the connection")

// wire is the network connection below a client library. It can be watched for its end without
// consuming what the library has to read.
type wire struct {
	net.Conn
	ahead *bufio.Reader
}

func newWire(conn net.Conn) *wire {
	const least = 16 // so that the library's own reads are not copied
	return &wire{conn, bufio.NewReaderSize(conn, least)}
}

func (w *wire) Read(p []byte) (int, error) { return w.ahead.Read(p) } //nolint:wrapcheck // an io.Reader

// hungUp waits until there is something to read, which can only be the end, or until ctx ends.
// Nothing else uses the connection during the wait.
func (w *wire) hungUp(ctx context.Context) error {
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = w.SetReadDeadline(time.Unix(1, 0))
		close(woken)
	})
	_, err := w.ahead.Peek(1)
	if !stop() {
		<-woken
	}
	var timeout net.Error
	if w.SetReadDeadline(time.Time{}) == nil && errors.As(err, &timeout) && timeout.Timeout() {
		return nil
	}
	return errHungUp
}
