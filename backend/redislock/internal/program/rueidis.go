package program

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// NewConn returns a Conn over a rueidis client. Owned means that Close closes the client, too. The requests end with
// their contexts.
func NewConn(client rueidis.Client, owned bool) Conn {
	return &rueidisConn{client: client, owned: owned, within: Undated}
}

// NewLaneConn returns the Conn of a lane over a rueidis client, which it owns. A request must have a deadline: without
// one rueidis starts goroutines for the connection, for good, and the goroutine of the caller would neither write nor read.
func NewLaneConn(client rueidis.Client) Conn {
	return &rueidisConn{client: client, owned: true, within: func(ctx context.Context) context.Context { return ctx }}
}

type rueidisConn struct {
	client rueidis.Client
	owned  bool
	within func(context.Context) context.Context // the context that the client gets
}

// Do sends a command: see Conn.
func (c *rueidisConn) Do(ctx context.Context, cmd ...string) (Reply, error) {
	a := answerOf(c.client.Do(c.within(ctx), c.client.B().Arbitrary(cmd...).Build()))
	return a.Reply, a.Err
}

// DoAll sends commands over one connection: see Conn.
func (c *rueidisConn) DoAll(ctx context.Context, cmds ...[]string) []Answer {
	built, all := make(rueidis.Commands, len(cmds)), make([]Answer, len(cmds))
	for i, cmd := range cmds {
		built[i] = c.client.B().Arbitrary(cmd...).Build()
	}
	for i, result := range c.client.DoMulti(c.within(ctx), built...) {
		all[i] = answerOf(result)
	}
	return all
}

// Listen subscribes to a channel: see Conn.
func (c *rueidisConn) Listen(ctx context.Context, channel string, ready func(), deliver func(payload string)) error {
	confirmed := make(chan struct{}, 1)
	s := Subscribe(c.client, func(_, message string) { deliver(message) }, func(string) {
		select {
		case confirmed <- struct{}{}:
		default:
		}
	})
	defer s.Close()
	if err := s.Add(ctx, channel); err != nil {
		return err
	}
	for {
		select {
		case <-confirmed:
			ready()
		case err := <-s.Ended():
			return FromRueidis(err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// HangUp does nothing: the requests end with their contexts.
func (c *rueidisConn) HangUp() {}

// Close closes the client if it is the connection's own.
func (c *rueidisConn) Close() {
	if c.owned {
		c.client.Close()
	}
}

// Subscription is a connection of rueidis for subscriptions.
type Subscription struct {
	conn   rueidis.DedicatedClient
	back   func()
	end    <-chan error
	closer sync.Once
}

// Subscribe returns a connection for subscriptions. heard is called with each message, and confirmed with each
// channel that the server has confirmed, in order and from one goroutine.
func Subscribe(client rueidis.Client, heard func(channel, message string), confirmed func(channel string)) *Subscription {
	s := new(Subscription)
	s.conn, s.back = client.Dedicate()
	s.end = s.conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) { heard(m.Channel, m.Message) },
		OnSubscription: func(p rueidis.PubSubSubscription) {
			if p.Kind == "subscribe" {
				confirmed(p.Channel)
			}
		},
	})
	return s
}

// Add subscribes to channels. It does not wait for the confirmation.
func (s *Subscription) Add(ctx context.Context, channels ...string) error {
	return s.send(ctx, s.conn.B().Subscribe().Channel(channels...).Build())
}

// Remove unsubscribes from channels. It does not wait for the confirmation.
func (s *Subscription) Remove(ctx context.Context, channels ...string) error {
	return s.send(ctx, s.conn.B().Unsubscribe().Channel(channels...).Build())
}

func (s *Subscription) send(ctx context.Context, cmd rueidis.Completed) error {
	if err := s.conn.Do(Undated(ctx), cmd).Error(); err != nil {
		return FromRueidis(err)
	}
	return nil
}

// Ended is closed, or receives an error, when the connection has ended.
func (s *Subscription) Ended() <-chan error { return s.end }

// Close ends the connection and returns after the last call of heard.
func (s *Subscription) Close() {
	s.closer.Do(func() {
		// The connection is closed, not returned to the pool: nothing of ours is left on it.
		s.conn.Close()
		for range s.end { // until it is closed: the hooks are not called any more
		}
		s.back()
	})
}

// FromRueidis returns an error answered by the server as *ServerError or ErrUnknown. After
// any other error the outcome of the command is unknown.
func FromRueidis(err error) error {
	if err == nil {
		return errors.New("redis: the connection was closed")
	}
	if said, ok := errors.AsType[*ServerError](err); ok {
		return said // see LastWords
	}
	re, ok := rueidis.IsRedisErr(err)
	if !ok {
		return fmt.Errorf("redis: %w", err)
	}
	return FromServer(re.Error())
}

func answerOf(result rueidis.RedisResult) Answer {
	m, err := result.ToMessage()
	if err != nil && !rueidis.IsRedisNil(err) {
		return Answer{Err: FromRueidis(err)}
	}
	r, err := replyOf(&m, 0)
	return Answer{r, err}
}

func replyOf(m *rueidis.RedisMessage, depth int) (Reply, error) {
	switch {
	case m.IsNil():
		return Reply{}, nil
	case m.IsInt64():
		n, err := m.ToInt64()
		return Int(n), err
	case m.IsMap(): // settings
		pairs, err := m.AsStrMap()
		if err != nil {
			return Reply{}, ErrReply
		}
		r := List()
		for name, value := range pairs {
			r.List = append(r.List, Text(name), Text(value))
		}
		return r, nil
	case m.IsArray() && depth < maxDepth:
		list, err := m.ToArray()
		r := List(make([]Reply, len(list))...)
		for i := range list {
			if r.List[i], err = replyOf(&list[i], depth+1); err != nil {
				return Reply{}, err
			}
		}
		return r, err
	}
	s, err := m.ToString()
	if err != nil {
		return Reply{}, ErrReply
	}
	return Text(s), nil
}

// Undated returns the context without its deadline. With a deadline and nothing else in
// progress rueidis reads the answer in the calling goroutine, where the end of the context is
// not noticed before the deadline.
func Undated(ctx context.Context) context.Context { return undated{ctx} }

type undated struct {
	context.Context //nolint:containedctx // it is a context
}

// Deadline reports that there is none.
func (undated) Deadline() (time.Time, bool) { return time.Time{}, false }
