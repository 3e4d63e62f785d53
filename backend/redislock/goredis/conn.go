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

const pool = 16 // two requests are in progress, and some that were given up

func newConn(settings *redis.Options, timeout time.Duration) *conn {
	open := new(connect.Set)
	return connOf(settings, timeout, open, ownOptions(settings, timeout, open))
}

// newLane makes the connection of a lane, and returns when the server has answered, or ctx ends.
func newLane(ctx context.Context, settings *redis.Options, timeout time.Duration, l *program.Lane) (program.Conn, error) {
	open := new(connect.Set)
	options := ownOptions(settings, timeout, open)
	dial := options.Dialer
	options.PoolSize = 1
	options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return l.Dial(func() (net.Conn, error) { return dial(ctx, network, addr) })
	}
	c := connOf(settings, timeout, open, options)
	defer context.AfterFunc(ctx, c.HangUp)()
	if _, err := c.Do(ctx, "PING"); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func connOf(settings *redis.Options, timeout time.Duration, open *connect.Set, options *redis.Options) *conn {
	c := &conn{settings: settings, timeout: timeout, open: open, client: redis.NewClient(options)}
	c.life, c.end = context.WithCancel(context.Background())
	return c
}

// ownOptions returns what is taken from the settings of the program's client: where the server is,
// and how to log in there. All else is ours.
func ownOptions(from *redis.Options, timeout time.Duration, open *connect.Set) *redis.Options {
	return &redis.Options{
		Network: from.Network, Addr: from.Addr, Dialer: dialer(from, open), TLSConfig: from.TLSConfig,
		OnConnect: from.OnConnect, ClientName: from.ClientName, DB: from.DB,
		Username: from.Username, Password: from.Password, CredentialsProvider: from.CredentialsProvider,
		CredentialsProviderContext: from.CredentialsProviderContext, StreamingCredentialsProvider: from.StreamingCredentialsProvider,

		// Without pushes, and without commands whose answers are not awaited, an answer cannot be
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
func (c *conn) Do(ctx context.Context, cmd ...string) (program.Reply, error) {
	if err := c.ended(ctx); err != nil {
		return program.Reply{}, err
	}
	a := answer(c.client.Do(ctx, words(cmd)...).Result())
	return a.Reply, a.Err
}

// DoAll sends commands over one connection: see program.Conn.
func (c *conn) DoAll(ctx context.Context, cmds ...[]string) []program.Answer {
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
			sent[i] = p.Do(ctx, words(cmd)...)
		}
		return nil
	})
	for i, cmd := range sent {
		all[i] = answer(cmd.Result())
	}
	return all
}

func words(cmd []string) []any {
	all := make([]any, len(cmd))
	for i := range cmd {
		all[i] = cmd[i]
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
func answer(v any, err error) program.Answer {
	var refused redis.Error
	said, ok := errors.AsType[*program.ServerError](err)
	switch {
	case ok:
		err = said // see program.LastWords
	case err == nil, errors.Is(err, redis.Nil):
		r, err := program.ReplyOf(v)
		return program.Answer{Reply: r, Err: err}
	case errors.As(err, &refused):
		err = program.FromServer(refused.Error())
	default:
		err = fmt.Errorf("redis: %w", err)
	}
	return program.Answer{Err: err}
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
