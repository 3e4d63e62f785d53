package redlock

import (
	"context"
	"crypto/tls"
	"embed"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/connect"
)

//go:embed lua/*.lua
var sources embed.FS

// newProgram returns the program that a node runs. See the folder lua.
func newProgram() (program.Program, error) {
	p, err := program.New(sources, "node", "quick", "main")
	if err != nil {
		return p, fmt.Errorf("redlock: %w", err)
	}
	return p, nil
}

// link is all that the protocol needs of one node. Errors of the server are *serverError or
// program.ErrUnknown. For the others see unsent.
type link interface {
	// run executes the program below the key, for the data whose identity is the third
	// argument. With load set its text is sent along. run sends the command once: it never
	// retries.
	run(ctx context.Context, load bool, key string, args []string) ([]program.Reply, error)

	// send sends a command, once.
	send(ctx context.Context, cmd ...string) (program.Reply, error)

	// listen returns a connection for subscriptions: see program.Subscribe.
	listen(heard func(channel, message string), subscribed func(channel string)) (*program.Subscription, error)

	// close ends what the link itself opened. It may be called twice.
	close()
}

// serverError is an error answered by a server.
type serverError = program.ServerError

// unsentError is the reason why nothing was sent.
type unsentError struct{ err error }

// Error returns the text of the cause.
func (e *unsentError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *unsentError) Unwrap() error { return e.err }

// rueidisLink is the link over rueidis. It connects when it is first needed, so that a node
// that is down does not prevent the start.
type rueidisLink struct {
	option rueidis.ClientOption
	owned  bool
	runner *program.Runner

	mu     sync.Mutex
	client rueidis.Client
	closed bool

	conns connect.Set
}

func newLink(client rueidis.Client, option rueidis.ClientOption, p program.Program) *rueidisLink {
	l := &rueidisLink{client: client, option: option, owned: client == nil, runner: program.NewRunner(p)}
	l.option.DialCtxFn = l.dial
	return l
}

// dial makes a connection that close ends, at any time. A server that hangs while a connection
// is being made blocks the client library, which gives up only at a time-out.
func (l *rueidisLink) dial(ctx context.Context, addr string, dialer *net.Dialer, secure *tls.Config) (net.Conn, error) {
	conn, err := l.conns.Dial(dialer)(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	if secure != nil {
		return program.Secure(ctx, conn, secure, dialer.Timeout)
	}
	return conn, nil
}

// connected returns the client. Only one caller at a time makes the connection, which takes
// the time-out of the dialer at most.
func (l *rueidisLink) connected() (rueidis.Client, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client != nil {
		return l.client, nil
	}
	if l.closed {
		return nil, &unsentError{errors.New("the link is closed")}
	}
	client, err := program.NewClient(l.option)
	if err != nil {
		return nil, &unsentError{program.FromRueidis(err)}
	}
	l.client = client
	return client, nil
}

func (l *rueidisLink) send(ctx context.Context, cmd ...string) (program.Reply, error) {
	client, err := l.connected()
	if err != nil {
		return program.Reply{}, err
	}
	return program.NewConn(client, false).Do(ctx, cmd...)
}

func (l *rueidisLink) run(ctx context.Context, load bool, key string, args []string) ([]program.Reply, error) {
	r, err := l.runner.Run(ctx, l.send, load, key+" "+args[2], key, args)
	if err == nil && r.Kind != program.ListReply {
		err = program.ErrReply
	}
	return r.List, err
}

func (l *rueidisLink) close() {
	l.conns.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.owned && l.client != nil {
		l.client.Close()
		l.client = nil
	}
}

func (l *rueidisLink) listen(heard func(channel, message string), subscribed func(channel string)) (*program.Subscription, error) {
	client, err := l.connected()
	if err != nil {
		return nil, err
	}
	return program.Subscribe(client, heard, subscribed), nil
}
