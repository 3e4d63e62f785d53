//go:build !unix

package mysqllock

import (
	"context"
	"net"
)

// hungUp waits until ctx ends. On this system the end of the connection is noticed with the next
// request, which a session with locks sends every now and then.
func hungUp(ctx context.Context, _ net.Conn) error {
	<-ctx.Done()
	return nil
}
