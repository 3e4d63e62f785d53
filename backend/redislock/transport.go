package redislock

import (
	"context"
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
	// send sends a command to the server that has the data, once: it never retries what may
	// have been executed.
	send(ctx context.Context, cmd ...string) (reply, error)

	// listen subscribes to a channel over a connection of its own, calls ready once the
	// server has confirmed that, and deliver with each message, in order and from one
	// goroutine. It returns when ctx ends or the connection breaks, after the last call of
	// deliver.
	listen(ctx context.Context, channel string, ready func(), deliver func(payload string)) error

	// hangUp ends the requests that do not end with their contexts.
	hangUp()

	// close ends what the transport itself opened.
	close()
}

// lone is the context of a request that its caller sends itself. No connection is made in it:
// program.ErrNoConnection is returned instead. It does not end at its deadline, which the connection has.
type lone struct {
	context.Context //nolint:containedctx // it is a context

	until time.Time
}

// Deadline is when to give up.
func (l *lone) Deadline() (time.Time, bool) { return l.until, true }

// Done is nil: engine.tick looks at the end of the context from time to time. See program.Lanes.
func (l *lone) Done() <-chan struct{} { return nil }

// reply is an answer of the server.
type reply = program.Reply

// serverError is an error answered by the server.
type serverError = program.ServerError

// errUnknown means that the server does not know the program.
var errUnknown = program.ErrUnknown
