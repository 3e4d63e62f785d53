package goredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// conn is the connection to one server, or to the master that a fail-over client finds. It is a
// client of its own, whose connections it can end at any time.
type conn struct {
	client   *redis.Client
	settings *redis.Options // of the client of the program
	timeout  time.Duration
	open     *connect.Set
	life     context.Context //nolint:containedctx // ends with HangUp
	end      context.CancelFunc
}

var _ program.Conn = (*conn)(nil)

func newConn(settings *redis.Options, timeout time.Duration) *conn {
	c := &conn{settings: settings, timeout: timeout, open: new(connect.Set)}
	c.life, c.end = context.WithCancel(context.Background())
	c.client = redis.NewClient(ownOptions(settings, timeout, c.open))
	return c
}

// ownOptions returns what is taken from the settings of the program's client: where the server is,
// and how to log in there. All else is ours.
func ownOptions(from *redis.Options, timeout time.Duration, open *connect.Set) *redis.Options {
	const pool = 8 // two requests are in progress, and some that were given up
	return &redis.Options{
		Network: from.Network, Addr: from.Addr, Dialer: dialer(from, open), TLSConfig: from.TLSConfig,
		OnConnect: from.OnConnect, ClientName: from.ClientName, DB: from.DB,
		Username: from.Username, Password: from.Password, CredentialsProvider: from.CredentialsProvider,
		CredentialsProviderContext: from.CredentialsProviderContext, StreamingCredentialsProvider: from.StreamingCredentialsProvider,

		// Without pushes, and without commands whose answer nobody waits for, an answer cannot be
		// taken for that of another command.
		Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},

		MaxRetries: -1, DialerRetries: 1,
		DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout, PoolTimeout: timeout, ContextTimeoutEnabled: true,
		PoolSize: pool, PipelinePoolSize: -1, ConnMaxIdleTime: -1,
	}
}

// dialer returns how to connect. With TLS the dialer of the program makes the handshake.
func dialer(from *redis.Options, open *connect.Set) connect.Dialer {
	dial := open.Watch(from.Dialer)
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		switch {
		case err != nil && from.TLSConfig != nil && !connect.IsDial(err):
			return nil, fmt.Errorf("%w: %s", err, connect.Check)
		case err != nil || from.TLSConfig != nil:
			return conn, err
		}
		return program.LastWords(conn), nil
	}
}

// Do sends a command: see program.Conn.
func (c *conn) Do(ctx context.Context, cmd ...any) (any, error) {
	if err := c.ended(ctx); err != nil {
		return nil, err
	}
	v, err := c.client.Do(ctx, cmd...).Result()
	return answer(v, err)
}

// DoAll sends commands over one connection: see program.Conn.
func (c *conn) DoAll(ctx context.Context, cmds ...[]any) []program.Answer {
	all := make([]program.Answer, len(cmds))
	if err := c.ended(ctx); err != nil {
		for i := range all {
			all[i].Err = err
		}
		return all
	}
	sent := make([]*redis.Cmd, len(cmds))
	_, _ = c.client.Pipelined(ctx, func(p redis.Pipeliner) error { // each command has its error
		for i, cmd := range cmds {
			sent[i] = p.Do(ctx, cmd...)
		}
		return nil
	})
	for i, cmd := range sent {
		all[i].Value, all[i].Err = answer(cmd.Result())
	}
	return all
}

// ended returns an error if nothing may be sent any more.
func (c *conn) ended(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return c.life.Err()
}

// answer returns what the server answered. go-redis reports a nil answer as an error.
func answer(v any, err error) (any, error) {
	var refused redis.Error
	said, ok := errors.AsType[*program.ServerError](err)
	switch {
	case ok:
		return nil, said // see program.LastWords
	case err == nil:
		return v, nil
	case errors.Is(err, redis.Nil):
		return nil, nil //nolint:nilnil // a nil answer, which is one
	case errors.As(err, &refused):
		return nil, program.FromServer(refused.Error())
	default:
		return nil, fmt.Errorf("redis: %w", err)
	}
}

// HangUp ends the requests in progress: see program.Conn.
func (c *conn) HangUp() {
	c.end()
	c.open.Close()
}

// Close closes the connections.
func (c *conn) Close() {
	c.HangUp()
	_ = c.client.Close() // its connections are closed
}
