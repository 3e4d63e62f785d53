package etcdlock

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/holdfast-io/holdfast/internal/connect"
)

// A request of etcd's client waits for as long as there is no connection, and does not say why there is none. So
// the reason is remembered for each endpoint. Once all of them refuse this client, the requests that wait fail.

// handshakes remembers how the last attempt to connect to each endpoint of a client ended.
type handshakes struct {
	connect.Endpoints

	endpoints int // how many there are
}

// options returns what a client is dialled with. They replace the credentials that the client would use.
func (h *handshakes) options(conf *tls.Config) []grpc.DialOption {
	inner := insecure.NewCredentials()
	if conf != nil {
		inner = credentials.NewTLS(conf)
	}
	return []grpc.DialOption{grpc.WithTransportCredentials(&watchedCredentials{inner, h}), grpc.WithChainUnaryInterceptor(h.request)}
}

// watchedCredentials are credentials whose handshakes are remembered.
type watchedCredentials struct {
	credentials.TransportCredentials

	by *handshakes
}

// ClientHandshake makes the handshake of a connection. authority is the endpoint.
func (c *watchedCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		c.by.Tried(authority, err)
		return nil, nil, err //nolint:wrapcheck // gRPC reports it
	}
	// With TLS 1.3 the server reports in its first answer that it does not accept the client's certificate.
	return connect.FirstRead(conn, func(err error) error {
		c.by.Tried(authority, err)
		return err
	}), info, nil
}

// Clone returns a copy that remembers in the same place.
func (c *watchedCredentials) Clone() credentials.TransportCredentials {
	return &watchedCredentials{c.TransportCredentials.Clone(), c.by}
}

// request sends a request. It ends with the reason if every endpoint refuses this client. The client of etcd does
// not retry after an error that is not gRPC's own.
func (h *handshakes) request(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if cc.GetState() == connectivity.Ready { // even if an endpoint refuses further connections
		return next(ctx, method, req, reply, cc, opts...)
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	asking, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watching.Go(func() { h.watch(asking, cc, cancel) })
	err := next(asking, method, req, reply, cc, opts...)
	if refusal := context.Cause(asking); err != nil && refusal != nil && ctx.Err() == nil {
		return refusal
	}
	if _, why, ok := strings.Cut(status.Convert(err).Message(), "latest balancer error: "); ok && ctx.Err() != nil {
		return unconnected(why, context.Cause(ctx))
	}
	return err
}

// unconnected returns the error of a request that had no connection when its context ended, of which the client of
// etcd would only report the context. It has what comes last in the text of gRPC, which is the system's. Some endpoints
// may refuse this client, but not all: see watch.
func unconnected(why string, cause error) error {
	if _, dial, ok := strings.Cut(strings.TrimSuffix(why, `"`), "Error while dialing: "); ok {
		why = dial
	}
	return &connect.UnconnectedError{Why: why, Err: cause}
}

// watch ends a request when every endpoint refuses this client, until ctx ends.
func (h *handshakes) watch(ctx context.Context, cc *grpc.ClientConn, end context.CancelCauseFunc) {
	for {
		another, refusal := h.Refusal(h.endpoints)
		if refusal != nil {
			if cc.GetState() != connectivity.Ready {
				end(refusal)
			}
			return
		}
		select {
		case <-another:
		case <-ctx.Done():
			return
		}
	}
}
