//go:build unix

package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// respConn speaks RESP 2, just enough to manage a server. The clients under test have libraries
// of their own: the code that checks them does not use these.
type respConn struct {
	conn net.Conn
	r    *bufio.Reader
}

// RedisDo runs a command on a connection of its own. The answer is nil, an int64, a string, or an
// []any of these.
func RedisDo(ctx context.Context, s *Server, args ...string) (any, error) {
	c, err := dialRESP(ctx, s.addr)
	if err != nil {
		return nil, err
	}
	defer c.close()
	if s.Secret != "" {
		if _, err := c.do("AUTH", s.Secret); err != nil {
			return nil, err
		}
	}
	return c.do(args...)
}

func dialRESP(ctx context.Context, addr string) (*respConn, error) {
	conn, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return &respConn{conn: conn, r: bufio.NewReader(conn)}, nil
}

func (c *respConn) close() { _ = c.conn.Close() }

func (c *respConn) do(args ...string) (any, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(c.conn, b.String()); err != nil {
		return nil, fmt.Errorf("send: %w", err)
	}
	return c.read()
}

func (c *respConn) read() (any, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("receive: %w", err)
	}
	kind, text := line[0], strings.TrimSuffix(line[1:], "\r\n")
	switch kind {
	case '+':
		return text, nil
	case '-':
		return nil, errors.New(text)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil:
		return nil, fmt.Errorf("receive: %w", err)
	case kind == ':':
		return n, nil
	case n < 0:
		return nil, nil //nolint:nilnil // what the server calls nil
	case kind == '$':
		b := make([]byte, n+2)
		if _, err := io.ReadFull(c.r, b); err != nil {
			return nil, fmt.Errorf("receive: %w", err)
		}
		return string(b[:n]), nil
	case kind == '*':
		list := make([]any, n)
		for i := range list {
			if list[i], err = c.read(); err != nil {
				return nil, err
			}
		}
		return list, nil
	default:
		return nil, fmt.Errorf("receive: unknown kind %q", kind)
	}
}
