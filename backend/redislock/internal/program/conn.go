package program

import (
	"context"
	"strings"
	"time"
)

// Conn is the connection to one server through a client library. An adapter of another library
// than rueidis implements it, and nothing else. Its methods are safe for concurrent use.
type Conn interface {
	// Do sends the command, once: it retries nothing that may have been executed, and follows
	// neither MOVED nor ASK. An answer is nil, an int64, a string, or an []any of these.
	// Errors of the server are those of FromServer. After any other error the outcome of the
	// command is unknown. Do returns at the deadline of ctx, and when HangUp or Close is called.
	Do(ctx context.Context, cmd ...any) (any, error)

	// DoAll sends commands over the same connection, one after the other, and returns an
	// answer for each. For the rest it is like Do.
	DoAll(ctx context.Context, cmds ...[]any) []Answer

	// Listen subscribes to a channel over a connection of its own, calls ready once the server
	// has confirmed that, and deliver with each message, in order and from one goroutine. It
	// returns when ctx ends, when the connection breaks, or when the server does not answer a
	// ping in time, after the last call of deliver. It never connects again.
	Listen(ctx context.Context, channel string, ready func(), deliver func(payload string)) error

	// HangUp ends the requests in progress, and refuses others.
	HangUp()

	// Close closes the connections.
	Close()
}

// Answer is an answer to a command, or an error.
type Answer struct {
	Value any
	Err   error
}

// Dial connects to the server that has the key now. Each connection, and each request on it, is
// bounded by timeout.
type Dial func(ctx context.Context, key string, timeout time.Duration) (Conn, error)

// Words returns the command as Conn.Do takes it.
func (c *Command) Words() []any {
	const head = 5 // at most
	words := make([]any, 0, head+len(c.Args))
	for word := range strings.FieldsSeq(c.Name) {
		words = append(words, word)
	}
	words = append(words, c.Text)
	if c.Name == functionLoad {
		return words
	}
	words = append(words, 1, c.Key)
	for _, a := range c.Args {
		words = append(words, a)
	}
	return words
}
