//go:build unix

package mysqllock

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"
)

// hungUp waits until there is something to read, which can only be the end, or until ctx ends. It
// consumes nothing, so the client library does not notice. Nothing else uses the connection
// during the wait.
func hungUp(ctx context.Context, wire net.Conn) error {
	raw, ok := wire.(syscall.Conn)
	if !ok {
		<-ctx.Done()
		return nil
	}
	rc, err := raw.SyscallConn()
	if err != nil {
		return errHungUp
	}
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = wire.SetReadDeadline(time.Unix(1, 0))
		close(woken)
	})
	var peeked error
	err = rc.Read(func(fd uintptr) bool {
		_, _, peeked = syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return !errors.Is(peeked, syscall.EAGAIN) && !errors.Is(peeked, syscall.EINTR)
	})
	if !stop() {
		<-woken
	}
	if again := wire.SetReadDeadline(time.Time{}); again != nil {
		return errHungUp
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return nil
	}
	return errHungUp
}
