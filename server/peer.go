package server

import (
	"context"
	"net"
)

// PeerUID returns the user ID of the process at the other end of the Unix socket of a request, at the
// time when it connected. It is false for other connections, for a system that does not tell, and for
// a request that Serve did not accept.
func PeerUID(ctx context.Context) (uint32, bool) {
	c, _ := ctx.Value(connKey{}).(*conn)
	if c == nil || c.uid == nil {
		return 0, false
	}
	return *c.uid, true
}

// uidOf returns the user ID of the process at the other end; nil: it is unknown.
func uidOf(accepted net.Conn) *uint32 {
	c, ok := accepted.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	var uid *uint32
	if err := raw.Control(func(fd uintptr) { uid = peerUID(int(fd)) }); err != nil {
		return nil
	}
	return uid
}
