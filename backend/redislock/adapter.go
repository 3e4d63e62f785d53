package redislock

import (
	"context"
	"fmt"
	"maps"

	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

// Over returns a Backend on connections of another client library: package goredis calls it.
// group means that another server can have the data later, as in a Cluster; then a connection
// that fails is closed, and dial is called again. Errors are those of New.
func Over(ctx context.Context, dial program.Dial, group bool, cfg Config) (*Backend, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	p, err := newProgram()
	if err != nil {
		return nil, err
	}
	open := func(ctx context.Context) (transport, error) {
		conn, err := dial(ctx, markerKey(cfg), cfg.RequestTimeout)
		if err != nil {
			return nil, err
		}
		return newConnLink(conn, p, replicationOf(cfg)), nil
	}
	var link transport = newRouter(open)
	if !group {
		if link, err = open(ctx); err != nil {
			return nil, readOnly(toKind("connect", err))
		}
	}
	b, err := newBackend(ctx, link, false, cfg)
	if err != nil {
		link.close()
		return nil, err
	}
	return b, nil
}

// markerKey is the key whose server has all the data.
func markerKey(cfg Config) string { return "{" + cfg.Prefix + "0}:m" }

// connLink is the transport over a connection of another client library.
type connLink struct {
	conn     program.Conn
	runner   *program.Runner
	replicas *replication // nil: no replicas are waited for
}

func newConnLink(conn program.Conn, p program.Program, r *replication) *connLink {
	return &connLink{conn: conn, runner: program.NewRunner(p), replicas: r}
}

func (l *connLink) run(ctx context.Context, load bool, key string, args []string) (reply, error) {
	answer, err := program.Run(ctx, l.runner, l.command, load, args[0], key, args)
	if err != nil {
		return reply{}, err
	}
	return replyOf(answer, 0)
}

func (l *connLink) command(ctx context.Context, cmd program.Command) (any, error) {
	return l.send(ctx, cmd.Words()...)
}

func (l *connLink) remove(ctx context.Context, key, member string) (bool, error) {
	answer, err := l.send(ctx, "ZREM", key, member)
	if err != nil {
		return false, err
	}
	n, err := number(answer)
	return n > 0, err
}

func (l *connLink) send(ctx context.Context, cmd ...any) (any, error) {
	if l.replicas != nil {
		return l.sendAndWait(ctx, cmd)
	}
	return l.conn.Do(ctx, cmd...)
}

// sendAndWait sends the command and waits for the replicas, on one connection.
func (l *connLink) sendAndWait(ctx context.Context, cmd []any) (any, error) {
	r := l.replicas
	got := l.conn.DoAll(ctx, cmd, wordsFor(r.extend()), wordsFor(r.wait()))
	if got[0].Err != nil {
		return nil, got[0].Err
	}
	answer := got[0].Value
	there, err := numberIn(got[1])
	if err != nil {
		return nil, r.missing(err)
	}
	if there == 0 {
		got = l.conn.DoAll(ctx, wordsFor(r.create()), wordsFor(r.wait()))
		if got[0].Err != nil {
			return nil, r.missing(got[0].Err)
		}
	}
	n, err := numberIn(got[len(got)-1])
	if err != nil {
		return nil, r.missing(err)
	}
	return answer, r.enough(n)
}

func (l *connLink) config(ctx context.Context, globs ...string) (map[string]string, error) {
	all := make(map[string]string)
	for _, glob := range globs {
		answer, err := l.conn.Do(ctx, "CONFIG", "GET", glob)
		if err != nil {
			return nil, err
		}
		settings, err := pairs(answer)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, settings)
	}
	return all, nil
}

func (l *connLink) info(ctx context.Context, section string) (string, error) {
	answer, err := l.conn.Do(ctx, "INFO", section)
	if err != nil {
		return "", err
	}
	text, ok := answer.(string)
	if !ok {
		return "", errReply
	}
	return text, nil
}

func (l *connLink) listen(ctx context.Context, channel string, ready func(), deliver func(payload string)) error {
	return l.conn.Listen(ctx, channel, ready, deliver)
}

func (l *connLink) hangUp() { l.conn.HangUp() }

func (l *connLink) close() { l.conn.Close() }

func wordsFor(words []string) []any {
	all := make([]any, len(words))
	for i, w := range words {
		all[i] = w
	}
	return all
}

func number(answer any) (int64, error) {
	n, ok := answer.(int64)
	if !ok {
		return 0, errReply
	}
	return n, nil
}

func numberIn(a program.Answer) (int64, error) {
	if a.Err != nil {
		return 0, a.Err
	}
	return number(a.Value)
}

// pairs returns an answer that is a list of names and values.
func pairs(answer any) (map[string]string, error) {
	list, ok := answer.([]any)
	if !ok || len(list)%2 != 0 {
		return nil, errReply
	}
	all := make(map[string]string)
	for i := 0; i < len(list); i += 2 {
		all[fmt.Sprint(list[i])] = fmt.Sprint(list[i+1])
	}
	return all, nil
}

func replyOf(answer any, depth int) (reply, error) {
	if depth > maxDepth {
		return reply{}, errReply
	}
	switch a := answer.(type) {
	case nil:
		return reply{}, nil
	case int64:
		return reply{kind: intReply, n: a}, nil
	case string:
		return reply{s: a}, nil
	case []any:
		r := reply{kind: listReply, list: make([]reply, len(a))}
		for i, item := range a {
			var err error
			if r.list[i], err = replyOf(item, depth+1); err != nil {
				return reply{}, err
			}
		}
		return r, nil
	default:
		return reply{}, errReply
	}
}
