package goredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-io/holdfast/internal/connect"
)

var errBroken = errors.New("redis: the connection of the subscription broke")

// Listen subscribes to a channel: see program.Conn.
//
// A subscription of go-redis connects again when its connection breaks, and does not tell that it
// missed messages meanwhile. So its Dialer connects once.
func (c *conn) Listen(ctx context.Context, channel string, ready func(), deliver func(payload string)) error {
	if err := c.ended(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.life, func() { cancel(context.Canceled) })()
	open := new(connect.Set)
	defer open.Close()
	defer context.AfterFunc(ctx, open.Close)()
	options := ownOptions(c.settings, c.timeout, open)
	options.Dialer = once(options.Dialer)
	client := redis.NewClient(options)
	defer func() { _ = client.Close() }()
	sub := client.Subscribe(ctx, channel)
	defer func() { _ = sub.Close() }()

	var pinging sync.WaitGroup
	defer pinging.Wait()
	defer cancel(nil)
	pinging.Go(func() { ping(ctx, sub, c.timeout) })
	err := receive(ctx, sub, c.timeout, ready, deliver)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// once returns a Dialer that connects once. Later it returns the reason why there is no connection.
func once(dial connect.Dialer) connect.Dialer {
	var reason atomic.Pointer[error]
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if !reason.CompareAndSwap(nil, &errBroken) {
			return nil, *reason.Load()
		}
		made, err := dial(ctx, network, addr)
		if err != nil {
			reason.Store(&err)
		}
		return made, err
	}
}

// ping sends pings until ctx ends. Their answers show that the connection works.
func ping(ctx context.Context, sub *redis.PubSub, timeout time.Duration) {
	const share = 3
	tick := time.NewTicker(max(timeout/share, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if sub.Ping(ctx) != nil {
				return // receive returns why
			}
		case <-ctx.Done():
			return
		}
	}
}

// receive receives messages until there is none, and no answer to a ping, for the time-out.
func receive(ctx context.Context, sub *redis.PubSub, timeout time.Duration, ready func(), deliver func(payload string)) error {
	confirmed := false
	for {
		got, err := sub.ReceiveTimeout(ctx, timeout)
		if err != nil {
			return answer(nil, err).Err
		}
		switch m := got.(type) {
		case *redis.Subscription:
			if confirmed {
				return fmt.Errorf("%w: it was replaced", errBroken)
			}
			confirmed = true
			ready()
		case *redis.Message:
			deliver(m.Payload)
		}
	}
}
