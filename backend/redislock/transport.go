package redislock

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

// transport is all that the protocol needs of a Redis client. The protocol knows neither
// whether there is one server behind it, a Sentinel group or a Cluster, nor which client
// library: an adapter implements this and nothing else.
//
// Errors of the server are *serverError, or errUnknown. After any other error the outcome of
// the command is unknown.
type transport interface {
	// run executes the program on the node that has the key. The program is named by what it
	// does and by the identity of the data, which is the first argument. With load set, its
	// text is sent along. run sends the command once: it never retries what may have been
	// executed.
	run(ctx context.Context, load bool, key string, args []string) (reply, error)

	// remove removes a member of the sorted set that is stored at the key, and reports whether
	// it was there. It sends the command once, as run does.
	remove(ctx context.Context, key, member string) (bool, error)

	// config returns settings of the server whose names match one of the globs.
	config(ctx context.Context, globs ...string) (map[string]string, error)

	// info returns one section of the server's INFO.
	info(ctx context.Context, section string) (string, error)

	// listen subscribes to a channel over a connection of its own, calls ready once the
	// server has confirmed that, and deliver with each message, in order and from one
	// goroutine. It returns when ctx ends or the connection breaks, after the last call of
	// deliver.
	listen(ctx context.Context, channel string, ready func(), deliver func(payload string)) error

	// hangUp ends the requests that do not end with their context: those in a context of lone,
	// and those through a library that does not notice the end.
	hangUp()

	// close ends what the transport itself opened.
	close()
}

// errNoConnection means that nothing was sent: there was no connection, and none was to be
// made.
var errNoConnection = errors.New("there is no connection")

type noDial struct{}

// lone is the context of a request that its caller sends itself. No connection is made in it:
// errNoConnection is returned instead. It does not end at its deadline, which rueidis sets on the
// connection.
type lone struct {
	context.Context //nolint:containedctx // it is a context

	until time.Time
}

// Deadline is when to give up.
func (l *lone) Deadline() (time.Time, bool) { return l.until, true }

// Value is that of the caller's context, except for noDial.
func (l *lone) Value(key any) any {
	if key == (noDial{}) {
		return true
	}
	return l.Context.Value(key)
}

// serverError is an error answered by the server.
type serverError = program.ServerError

// errUnknown means that the server does not know the program.
var errUnknown = program.ErrUnknown

func fromRueidis(err error) error { return program.FromRueidis(err) }

// reply is an answer of the server: a number, a text, or a list of replies. A nil answer is
// an empty text.
type reply struct {
	kind replyKind
	n    int64
	s    string
	list []reply
}

type replyKind uint8

const (
	textReply replyKind = iota
	intReply
	listReply
)
