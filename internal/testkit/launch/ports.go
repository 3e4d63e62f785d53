package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// FreeAddr returns a loopback address on which no process listens. The kernel chose the port and
// does not give it to another process for the next minute, except to a server that requests it by
// number: a connection on it is left in TIME_WAIT.
func FreeAddr() (string, error) {
	addr, err := reserve()
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return addr, nil
}

func reserve() (string, error) {
	const patience = time.Minute // on a machine that stands still
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err //nolint:wrapcheck // FreeAddr does
	}
	defer func() { _ = l.Close() }()
	addr := l.Addr().String()
	dialled, err := dial(ctx, addr)
	if err != nil {
		return "", err
	}
	defer func() { _ = dialled.Close() }()
	accepted, err := l.Accept()
	if err != nil {
		return "", err //nolint:wrapcheck // FreeAddr does
	}
	// The side that closes first is left in TIME_WAIT: the listening side must be.
	if err := accepted.Close(); err != nil {
		return "", err //nolint:wrapcheck // FreeAddr does
	}
	if _, err := dialled.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read: %w", err)
	}
	// A process that is just being started listens as well, until it runs its program.
	_ = l.Close()
	for again, err := dial(ctx, addr); err == nil; again, err = dial(ctx, addr) {
		_ = again.Close()
	}
	return addr, context.Cause(ctx)
}

func dial(ctx context.Context, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", addr) //nolint:wrapcheck // it names the address
}

// Port returns the port of an address of FreeAddr.
func Port(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }
