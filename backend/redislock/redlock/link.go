package redlock

import (
	"context"
	"crypto/tls"
	"embed"
	"errors"
	"fmt"
	"maps"
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
// program.ErrUnknown. *unsentError means that nothing was sent. After any other error
// the outcome of the command is unknown.
type link interface {
	// run executes the program below the key, for the data whose identity is the third
	// argument. With load set its text is sent along. run sends the command once: it never
	// retries.
	run(ctx context.Context, load bool, key string, args []string) ([]any, error)

	// exists reports whether the key exists.
	exists(ctx context.Context, key string) (bool, error)

	// config returns the settings of the server whose names match one of the globs.
	config(ctx context.Context, globs ...string) (map[string]string, error)

	// listen returns a connection for subscriptions. heard is called with each message, and
	// subscribed with each channel that the server has confirmed, in order and from one
	// goroutine.
	listen(ctx context.Context, heard func(channel, message string), subscribed func(channel string)) (subscription, error)

	// close ends what the link itself opened.
	close()
}

// subscription is a connection for subscriptions.
type subscription interface {
	// subscribe and unsubscribe send a request for the channels. They do not wait for the
	// confirmation.
	subscribe(ctx context.Context, channels ...string) error
	unsubscribe(ctx context.Context, channels ...string) error
	// ended is closed, or receives an error, when the connection has ended.
	ended() <-chan error
	// close ends the connection and returns after the last call of heard.
	close()
}

// serverError is an error answered by a server.
type serverError = program.ServerError

func newServerError(text string) *serverError { return program.NewServerError(text) }

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
		return nil, &unsentError{fromRueidis(err)}
	}
	l.client = client
	return client, nil
}

func (l *rueidisLink) run(ctx context.Context, load bool, key string, args []string) ([]any, error) {
	client, err := l.connected()
	if err != nil {
		return nil, err
	}
	send := func(ctx context.Context, cmd program.Command) (rueidis.RedisMessage, error) {
		m, err := client.Do(program.Undated(ctx), cmd.ForRueidis(client.B())).ToMessage()
		if err != nil {
			return m, fromRueidis(err)
		}
		return m, nil
	}
	m, err := program.Run(ctx, l.runner, send, load, key+" "+args[2], key, args)
	if err != nil {
		return nil, err
	}
	answer, err := m.ToAny()
	list, ok := answer.([]any)
	if err != nil || !ok {
		return nil, errAnswer
	}
	return list, nil
}

func (l *rueidisLink) exists(ctx context.Context, key string) (bool, error) {
	client, err := l.connected()
	if err != nil {
		return false, err
	}
	n, err := client.Do(program.Undated(ctx), client.B().Exists().Key(key).Build()).AsInt64()
	if err != nil {
		return false, fromRueidis(err)
	}
	return n > 0, nil
}

func (l *rueidisLink) config(ctx context.Context, globs ...string) (map[string]string, error) {
	client, err := l.connected()
	if err != nil {
		return nil, err
	}
	m, err := client.Do(program.Undated(ctx), client.B().ConfigGet().Parameter(globs...).Build()).AsStrMap()
	if err != nil {
		return nil, fromRueidis(err)
	}
	return maps.Clone(m), nil
}

func (l *rueidisLink) close() {
	l.conns.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.owned && l.client != nil {
		l.client.Close()
	}
}

// rueidisEar is a dedicated connection.
type rueidisEar struct {
	conn   rueidis.DedicatedClient
	back   func()
	end    <-chan error
	closer sync.Once
}

func (l *rueidisLink) listen(_ context.Context, heard func(channel, message string), subscribed func(channel string)) (subscription, error) {
	client, err := l.connected()
	if err != nil {
		return nil, err
	}
	conn, back := client.Dedicate()
	e := &rueidisEar{conn: conn, back: back}
	e.end = conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) { heard(m.Channel, m.Message) },
		OnSubscription: func(s rueidis.PubSubSubscription) {
			if s.Kind == "subscribe" {
				subscribed(s.Channel)
			}
		},
	})
	return e, nil
}

func (e *rueidisEar) subscribe(ctx context.Context, channels ...string) error {
	err := e.conn.Do(program.Undated(ctx), e.conn.B().Subscribe().Channel(channels...).Build()).Error()
	if err != nil {
		return fromRueidis(err)
	}
	return nil
}

func (e *rueidisEar) unsubscribe(ctx context.Context, channels ...string) error {
	err := e.conn.Do(program.Undated(ctx), e.conn.B().Unsubscribe().Channel(channels...).Build()).Error()
	if err != nil {
		return fromRueidis(err)
	}
	return nil
}

func (e *rueidisEar) ended() <-chan error { return e.end }

func (e *rueidisEar) close() {
	e.closer.Do(func() {
		// The connection is closed, not returned to the pool: nothing of ours is left on it.
		e.conn.Close()
		for range e.end { // until it is closed: the hooks are not called any more
		}
		e.back()
	})
}

// fromRueidis distinguishes the answers of the server, and what was not sent, from all other
// errors.
func fromRueidis(err error) error {
	if err != nil && connect.IsDial(err) {
		return &unsentError{fmt.Errorf("redis: %w", err)}
	}
	return program.FromRueidis(err)
}
