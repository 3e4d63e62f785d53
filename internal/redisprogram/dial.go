package redisprogram

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/internal/speaks"
)

// Secure makes the handshake of TLS on a connection, within timeout. Redis without TLS never answers one, and
// has the error speaks.ErrPlain. After an error the connection is closed.
func Secure(ctx context.Context, conn net.Conn, conf *tls.Config, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	secure := tls.Client(conn, conf)
	if err := speaks.Handshake(ctx, secure, Question(), speaks.To("tcp", conn.RemoteAddr().String())); err != nil {
		return nil, err
	}
	return secure, nil
}

// Question is a ping, which Redis answers before login too.
func Question() speaks.Question {
	return speaks.Question{Ask: "PING\r\n", Known: func(answer []byte) bool {
		for _, known := range []string{"+PONG", "-NOAUTH", "-DENIED"} {
			if bytes.HasPrefix(answer, []byte(known)) {
				return true
			}
		}
		return false
	}}
}

// NewClient creates a client of one server, which it connects to. If the server speaks TLS only and the option
// has none, the error is speaks.ErrTLS.
func NewClient(ctx context.Context, option rueidis.ClientOption) (rueidis.Client, error) {
	client, err := rueidis.NewClient(option)
	if err == nil {
		return client, nil
	}
	if client != nil {
		client.Close()
	}
	if option.TLSConfig == nil {
		err = speaks.TLS(ctx, err, Question(), speaks.To("tcp", option.InitAddress[0]))
	}
	return nil, err
}
