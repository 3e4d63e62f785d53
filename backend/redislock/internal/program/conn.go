package program

import (
	"context"
	"fmt"
	"time"
)

// Conn is the connection to one server through a client library. NewConn is for rueidis; an adapter of another
// library implements it, and nothing else. Its methods are safe for concurrent use.
type Conn interface {
	// Do sends the command, once: it retries nothing that may have been executed, and follows
	// neither MOVED nor ASK. Errors of the server are those of FromServer. After any other error the
	// outcome of the command is unknown. Do returns at the deadline of ctx, and when HangUp or Close
	// is called.
	Do(ctx context.Context, cmd ...string) (Reply, error)

	// DoAll sends commands over the same connection, one after the other, and returns an
	// answer for each. For the rest it is like Do.
	DoAll(ctx context.Context, cmds ...[]string) []Answer

	// Listen subscribes to a channel over a connection of its own, calls ready once the server
	// has confirmed that, and deliver with each message, in order and from one goroutine. It
	// returns when ctx ends, when the connection breaks, or when the server does not answer a
	// ping in time, after the last call of deliver. It never connects again.
	Listen(ctx context.Context, channel string, ready func(), deliver func(payload string)) error

	// HangUp ends the requests in progress that do not end with their contexts, and refuses others.
	HangUp()

	// Close closes the connections.
	Close()
}

// Answer is an answer to a command, or an error.
type Answer struct {
	Reply
	Err error
}

// Number returns the number that the server answered.
func (a Answer) Number() (int64, error) {
	if a.Err == nil && a.Kind != IntReply {
		return 0, ErrReply
	}
	return a.N, a.Err
}

// Send sends a command, once. Its errors are those of Conn.Do.
type Send func(ctx context.Context, cmd ...string) (Reply, error)

// Library is how another client library reaches servers.
type Library struct {
	// Dial connects to the address, which is empty for the one server that a client is configured for. Each connection,
	// and each request on it, is bounded by timeout.
	Dial func(ctx context.Context, addr string, timeout time.Duration) (Conn, error)
	// Nodes returns the addresses of the servers of a Cluster; nil: the client is for one server at a time.
	Nodes func(ctx context.Context) ([]string, error)
	// Lane opens a connection for a caller that is alone; nil: another server can have the data later.
	Lane OpenLane
}

// Settings returns the settings of the server whose names match one of the globs.
func Settings(ctx context.Context, send Send, globs ...string) (map[string]string, error) {
	all := make(map[string]string)
	for _, glob := range globs {
		r, err := send(ctx, "CONFIG", "GET", glob)
		if err != nil {
			return nil, err
		}
		d := Decoder{List: r.List}
		for len(d.List) > 0 && d.Err == nil {
			name := d.Text()
			all[name] = d.Text()
		}
		if d.Err != nil {
			return nil, fmt.Errorf("the settings: %w", d.Err)
		}
	}
	return all, nil
}

// Synced reports whether a server with these settings answers only when the write is on its disk.
func Synced(settings map[string]string) bool {
	return settings["appendonly"] == "yes" && settings["appendfsync"] == "always" && settings["no-appendfsync-on-rewrite"] != "yes"
}

// Evicts reports whether a server with these settings may delete keys when its memory is full.
func Evicts(settings map[string]string) bool {
	policy := settings["maxmemory-policy"]
	return policy != "" && policy != "noeviction"
}
