package redislock

import (
	"context"
	"errors"

	"github.com/holdfast-io/holdfast/internal/redisprogram"
)

// transport is all that the protocol needs of a Redis client. The protocol does not
// know whether there is one server behind it, a Sentinel group or a Cluster, nor
// which client library: an adapter implements this and nothing else.
//
// Errors of the server are *serverError, or errUnknown. All other errors mean that
// it is not known what became of the command.
type transport interface {
	// run executes the program on the node that has the key. It is named by what it does
	// and by the identity of the data, the first of the arguments; with load set its text
	// is sent along. It sends the command once: it never retries what may have been
	// executed.
	run(ctx context.Context, load bool, key string, args []string) (reply, error)

	// config gives settings of the server whose names match one of the globs.
	config(ctx context.Context, globs ...string) (map[string]string, error)

	// info gives a section of what the server tells of itself.
	info(ctx context.Context, section string) (string, error)

	// listen subscribes to a channel over a connection of its own, calls ready once
	// the server has confirmed that, and deliver with each message, in order and from
	// one goroutine. It returns when ctx ends or the connection breaks, after the last
	// call of deliver.
	listen(ctx context.Context, channel string, ready func(), deliver func(payload string)) error

	// close ends what the transport itself opened.
	close()
}

// errNoConnection: nothing was sent, because there was no connection, and none was to be
// made.
var errNoConnection = errors.New("there is no connection")

type noDial struct{}

// withoutDial is a context in which no connection is made: errNoConnection instead.
func withoutDial(ctx context.Context) context.Context { return context.WithValue(ctx, noDial{}, true) }

// withDial takes that back.
func withDial(ctx context.Context) context.Context { return context.WithValue(ctx, noDial{}, nil) }

// serverError is an answer of the server that is an error.
type serverError = redisprogram.ServerError

// errUnknown: the server does not know the program.
var errUnknown = redisprogram.ErrUnknown

func fromRueidis(err error) error { return redisprogram.FromRueidis(err) }

// reply is an answer of the server: a number, a text, or a list of replies. What the
// server leaves out is an empty text.
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
