package program

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"
)

// ForRueidis returns the command as rueidis sends it.
func (c *Command) ForRueidis(b rueidis.Builder) rueidis.Completed {
	switch c.Name {
	case functionLoad:
		return b.FunctionLoad().FunctionCode(c.Text).Build()
	case "FCALL":
		return b.Fcall().Function(c.Text).Numkeys(1).Key(c.Key).Arg(c.Args...).Build()
	case "EVALSHA":
		return b.Evalsha().Sha1(c.Text).Numkeys(1).Key(c.Key).Arg(c.Args...).Build()
	default:
		return b.Eval().Script(c.Text).Numkeys(1).Key(c.Key).Arg(c.Args...).Build()
	}
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

// Undated returns the context without its deadline. With a deadline and nothing else in
// progress rueidis reads the answer in the calling goroutine, where the end of the context is
// not noticed before the deadline.
func Undated(ctx context.Context) context.Context { return undated{ctx} }

type undated struct {
	context.Context //nolint:containedctx // it is a context
}

// Deadline reports that there is none.
func (undated) Deadline() (time.Time, bool) { return time.Time{}, false }
