package redislock

import (
	"context"
	"errors"
	"maps"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

// rueidisLink is the transport over a rueidis client.
type rueidisLink struct {
	client   rueidis.Client
	runner   *program.Runner
	owned    bool         // the client is closed with the transport
	replicas *replication // nil: no replicas are waited for
	lanes    *lanes       // nil: requests share the connections of client
	command  program.Send[rueidis.RedisMessage]
}

func newRueidisLink(client rueidis.Client, p program.Program, owned bool, r *replication) *rueidisLink {
	l := &rueidisLink{client: client, runner: program.NewRunner(p), owned: owned, replicas: r}
	l.command = func(ctx context.Context, cmd program.Command) (rueidis.RedisMessage, error) {
		return l.send(ctx, cmd.ForRueidis(l.client.B()))
	}
	return l
}

func (l *rueidisLink) run(ctx context.Context, load bool, key string, args []string) (reply, error) {
	msg, err := program.Run(ctx, l.runner, l.command, load, args[0], key, args)
	if err != nil {
		return reply{}, err
	}
	return convert(&msg, 0)
}

func (l *rueidisLink) remove(ctx context.Context, key, member string) (bool, error) {
	msg, err := l.send(ctx, l.client.B().Zrem().Key(key).Member(member).Build())
	if err != nil {
		return false, err
	}
	n, err := msg.AsInt64()
	if err != nil {
		return false, fromRueidis(err)
	}
	return n > 0, nil
}

func (l *rueidisLink) send(ctx context.Context, cmd rueidis.Completed) (rueidis.RedisMessage, error) {
	if l.replicas != nil {
		return l.sendAndWait(ctx, cmd)
	}
	msg, err := l.exchange(ctx, cmd)
	if err != nil {
		return msg, fromRueidis(err)
	}
	return msg, nil
}

// sendAndWait sends the command and waits for the replicas, on one connection.
func (l *rueidisLink) sendAndWait(ctx context.Context, cmd rueidis.Completed) (rueidis.RedisMessage, error) {
	extend, wait := l.replicas.extend(), l.replicas.wait()
	got := l.client.DoMulti(program.Undated(ctx), cmd, l.arbitrary(extend), l.arbitrary(wait))
	msg, err := got[0].ToMessage()
	if err != nil {
		return rueidis.RedisMessage{}, fromRueidis(err)
	}
	there, err := got[1].AsInt64()
	if err != nil {
		return rueidis.RedisMessage{}, l.replicas.missing(fromRueidis(err))
	}
	if there == 0 {
		got = l.client.DoMulti(program.Undated(ctx), l.arbitrary(l.replicas.create()), l.arbitrary(wait))
		if err := got[0].Error(); err != nil {
			return rueidis.RedisMessage{}, l.replicas.missing(fromRueidis(err))
		}
	}
	n, err := got[len(got)-1].AsInt64()
	if err != nil {
		return rueidis.RedisMessage{}, l.replicas.missing(fromRueidis(err))
	}
	return msg, l.replicas.enough(n)
}

func (l *rueidisLink) arbitrary(words []string) rueidis.Completed {
	return l.client.B().Arbitrary(words...).Build()
}

// exchange sends the command on a lane, if there is one and none is to be made.
func (l *rueidisLink) exchange(ctx context.Context, cmd rueidis.Completed) (rueidis.RedisMessage, error) {
	if _, dated := ctx.Deadline(); dated && l.lanes != nil {
		if lane := l.lanes.take(); lane != nil {
			defer l.lanes.put(lane)
			return lane.send(ctx, cmd)
		}
	}
	if _, alone := ctx.(*lone); alone {
		return rueidis.RedisMessage{}, errNoConnection
	}
	return l.client.Do(program.Undated(ctx), cmd).ToMessage() //nolint:wrapcheck // send does
}

func (l *rueidisLink) hangUp() {
	if l.lanes != nil {
		l.lanes.hangUp()
	}
}

func (l *rueidisLink) config(ctx context.Context, globs ...string) (map[string]string, error) {
	all := make(map[string]string)
	for _, glob := range globs {
		m, err := l.client.Do(program.Undated(ctx), l.client.B().ConfigGet().Parameter(glob).Build()).AsStrMap()
		if err != nil {
			return nil, fromRueidis(err)
		}
		maps.Copy(all, m)
	}
	return all, nil
}

func (l *rueidisLink) info(ctx context.Context, section string) (string, error) {
	s, err := l.client.Do(program.Undated(ctx), l.client.B().Info().Section(section).Build()).ToString()
	if err != nil {
		return "", fromRueidis(err)
	}
	return s, nil
}

func (l *rueidisLink) listen(ctx context.Context, channel string, ready func(), deliver func(payload string)) error {
	conn, release := l.client.Dedicate()
	// The connection is closed, not returned to the pool: nothing of ours is left on it.
	defer release()
	defer conn.Close()
	confirmed := make(chan struct{}, 1)
	broken := conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) { deliver(m.Message) },
		OnSubscription: func(s rueidis.PubSubSubscription) {
			if s.Kind == "subscribe" {
				select {
				case confirmed <- struct{}{}:
				default:
				}
			}
		},
	})
	if err := conn.Do(program.Undated(ctx), conn.B().Subscribe().Channel(channel).Build()).Error(); err != nil {
		drain(conn, broken)
		return fromRueidis(err)
	}
	select {
	case <-confirmed:
		ready()
	case err := <-broken:
		return fromRueidis(err)
	case <-ctx.Done():
		drain(conn, broken)
		return context.Cause(ctx)
	}
	select {
	case err := <-broken:
		return fromRueidis(err)
	case <-ctx.Done():
		drain(conn, broken)
		return context.Cause(ctx)
	}
}

// drain closes the connection and waits until its hooks are not called any more.
func drain(conn rueidis.DedicatedClient, broken <-chan error) {
	conn.Close()
	for range broken { // until it is closed
	}
}

func (l *rueidisLink) close() {
	if l.lanes != nil {
		l.lanes.close()
	}
	if l.owned {
		l.client.Close()
	}
}

// maxDepth is deeper than any answer of the script.
const maxDepth = 8

var errReply = errors.New("redis: the answer is not one of the script's")

func convert(m *rueidis.RedisMessage, depth int) (reply, error) {
	switch {
	case depth > maxDepth:
		return reply{}, errReply
	case m.IsNil():
		return reply{}, nil
	case m.IsInt64():
		n, err := m.ToInt64()
		if err != nil {
			return reply{}, errReply
		}
		return reply{kind: intReply, n: n}, nil
	case m.IsString():
		s, err := m.ToString()
		if err != nil {
			return reply{}, errReply
		}
		return reply{s: s}, nil
	case m.IsArray():
		list, err := m.ToArray()
		if err != nil {
			return reply{}, errReply
		}
		r := reply{kind: listReply, list: make([]reply, len(list))}
		for i := range list {
			if r.list[i], err = convert(&list[i], depth+1); err != nil {
				return reply{}, err
			}
		}
		return r, nil
	default:
		return reply{}, errReply
	}
}
