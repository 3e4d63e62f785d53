package redislock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// rueidisLink is the transport over a rueidis client.
type rueidisLink struct {
	client   rueidis.Client
	program  program
	owned    bool         // the client is closed with the transport
	replicas *replication // nil: nothing is waited for
	scripts  atomic.Bool  // the server takes no functions, or none of ours

	mu       sync.Mutex
	identity string // the data that the script of that hash is for
	hash     string
}

func newRueidisLink(client rueidis.Client, p program, owned bool) *rueidisLink {
	return &rueidisLink{client: client, program: p, owned: owned}
}

// undated hides the deadline of a context. With a deadline and nothing else under way
// rueidis reads the answer in the calling goroutine, where the end of the context is
// not seen before the deadline.
type undated struct {
	context.Context //nolint:containedctx // it is a context
}

// Deadline says that there is none.
func (undated) Deadline() (time.Time, bool) { return time.Time{}, false }

func (l *rueidisLink) run(ctx context.Context, load bool, key string, args []string) (reply, error) {
	if !l.scripts.Load() {
		r, err := l.call(ctx, load, key, args)
		if !unable(err) {
			return r, err
		}
		l.scripts.Store(true)
	}
	return l.eval(ctx, load, key, args)
}

// call calls the function. A server whose memory is full refuses it, and is asked for the
// one that adds nothing.
func (l *rueidisLink) call(ctx context.Context, load bool, key string, args []string) (reply, error) {
	if load {
		if err := l.load(ctx); err != nil {
			return reply{}, err
		}
	}
	r, err := l.send(ctx, l.client.B().Fcall().Function(l.program.function).Numkeys(1).Key(key).Arg(args...).Build())
	var refused *serverError
	if errors.As(err, &refused) && refused.code == "OOM" {
		return l.send(ctx, l.client.B().Fcall().Function(l.program.function+"_full").Numkeys(1).Key(key).Arg(args...).Build())
	}
	return r, err
}

// load gives the functions to the server, unless somebody was faster.
func (l *rueidisLink) load(ctx context.Context) error {
	_, err := l.send(ctx, l.client.B().FunctionLoad().FunctionCode(l.program.library).Build())
	var refused *serverError
	if errors.As(err, &refused) && strings.Contains(refused.text, "already exists") {
		return nil
	}
	return err
}

// unable reports whether the server does not take functions from us: it is older than
// Redis 7, or another that has none, or the user may not.
func unable(err error) bool {
	var refused *serverError
	return errors.As(err, &refused) && (refused.code == "NOPERM" || strings.HasPrefix(refused.text, "unknown command"))
}

// eval runs the script, by its hash or by its text.
func (l *rueidisLink) eval(ctx context.Context, load bool, key string, args []string) (reply, error) {
	if load {
		return l.send(ctx, l.client.B().Eval().Script(l.program.scriptFor(args[0])).Numkeys(1).Key(key).Arg(args...).Build())
	}
	return l.send(ctx, l.client.B().Evalsha().Sha1(l.hashFor(args[0])).Numkeys(1).Key(key).Arg(args...).Build())
}

func (l *rueidisLink) hashFor(identity string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hash == "" || l.identity != identity {
		l.identity, l.hash = identity, hash(l.program.scriptFor(identity))
	}
	return l.hash
}

func (l *rueidisLink) send(ctx context.Context, cmd rueidis.Completed) (reply, error) {
	if l.replicas != nil {
		return l.sendAndWait(ctx, cmd)
	}
	msg, err := l.client.Do(undated{ctx}, cmd).ToMessage()
	if err != nil {
		return reply{}, fromRueidis(err)
	}
	return convert(&msg, 0)
}

func (l *rueidisLink) config(ctx context.Context, globs ...string) (map[string]string, error) {
	all := make(map[string]string)
	for _, glob := range globs {
		m, err := l.client.Do(undated{ctx}, l.client.B().ConfigGet().Parameter(glob).Build()).AsStrMap()
		if err != nil {
			return nil, fromRueidis(err)
		}
		maps.Copy(all, m)
	}
	return all, nil
}

func (l *rueidisLink) info(ctx context.Context, section string) (string, error) {
	s, err := l.client.Do(undated{ctx}, l.client.B().Info().Section(section).Build()).ToString()
	if err != nil {
		return "", fromRueidis(err)
	}
	return s, nil
}

func (l *rueidisLink) listen(ctx context.Context, channel string, ready func(), deliver func(payload string)) error {
	conn, release := l.client.Dedicate()
	// The connection is closed, not given back: nothing of ours is left on it.
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
	if err := conn.Do(undated{ctx}, conn.B().Subscribe().Channel(channel).Build()).Error(); err != nil {
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
	if l.owned {
		l.client.Close()
	}
}

// fromRueidis tells the answers of the server from everything else. rueidis has taken the
// ERR off the texts that begin with it.
func fromRueidis(err error) error {
	if err == nil {
		return errors.New("redis: the connection was closed")
	}
	re, ok := rueidis.IsRedisErr(err)
	if !ok {
		return fmt.Errorf("redis: %w", err)
	}
	if re.IsNoScript() || strings.HasPrefix(re.Error(), "Function not found") {
		return errUnknown
	}
	return parseServerError(re.Error())
}

func parseServerError(text string) *serverError {
	code, _, _ := strings.Cut(text, " ")
	return &serverError{code: code, text: text}
}

// maxDepth is deeper than any answer of the script.
const maxDepth = 8

var errReply = errors.New("redis: an answer that the script does not give")

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
