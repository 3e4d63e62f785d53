//go:build !unix

package mysqllock

import (
	"context"
	"net"
)

// hungUp waits until ctx ends. Here the end of the connection is noticed with what is sent
// next, which a session with locks does every now and then.
func hungUp(ctx context.Context, _ net.Conn) error {
	<-ctx.Done()
	return nil
}
