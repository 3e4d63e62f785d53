package redislock

import (
	"context"
	"errors"
)

// transport is all that the protocol needs of a Redis client. The protocol does not
// know whether there is one server behind it, a Sentinel group or a Cluster, nor
// which client library: an adapter implements this and nothing else.
//
// Errors of the server are *serverError, or errNoScript. All other errors mean that
// it is not known what became of the command.
type transport interface {
	// eval runs the script, by its hash or with load set by its text, on the node
	// that has the key. It sends the command once: it never retries by itself.
	eval(ctx context.Context, load bool, key string, args []string) (reply, error)

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

// errNoScript: the server does not know the script by its hash.
var errNoScript = errors.New("the script is not loaded")

// serverError is an answer of the server that is an error.
type serverError struct {
	code string // its first word: "WRONGTYPE"
	text string // all of it
}

// Error is what the server said.
func (e *serverError) Error() string { return "redis: " + e.text }

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
