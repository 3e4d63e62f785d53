package program

import (
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// ErrReply means that an answer is not one of our programs': another client may have changed the data.
var ErrReply = errors.New("redis: the answer is not one of the script's")

// Reply is an answer of a server: a number, a text, or a list of replies. A nil answer is an empty text.
type Reply struct {
	Kind Kind
	N    int64
	S    string
	List []Reply
}

// Kind is what a Reply is.
type Kind uint8

// The kinds of replies.
const (
	TextReply Kind = iota
	IntReply
	ListReply
)

// Text returns a text reply.
func Text(s string) Reply { return Reply{S: s} }

// Int returns a number.
func Int(n int64) Reply { return Reply{Kind: IntReply, N: n} }

// List returns a list.
func List(list ...Reply) Reply { return Reply{Kind: ListReply, List: list} }

// maxDepth is deeper than any answer of a program.
const maxDepth = 8

// ReplyOf returns the answer of a client library that represents it by nil, an int64, a string, or an
// []any of these. Any other answer is ErrReply.
func ReplyOf(answer any) (Reply, error) { return replyAt(answer, 0) }

func replyAt(answer any, depth int) (Reply, error) {
	switch a := answer.(type) {
	case nil:
		return Reply{}, nil
	case int64:
		return Int(a), nil
	case string:
		return Text(a), nil
	case []any:
		if depth == maxDepth {
			return Reply{}, ErrReply
		}
		r := List(make([]Reply, len(a))...)
		for i, item := range a {
			var err error
			if r.List[i], err = replyAt(item, depth+1); err != nil {
				return Reply{}, err
			}
		}
		return r, nil
	default:
		return Reply{}, ErrReply
	}
}

// Decoder reads an answer from its front. It never panics: after the first mismatch Err is set, and all
// methods return zero values.
type Decoder struct {
	List []Reply
	Err  error
}

func (d *Decoder) next(kind Kind) Reply {
	if d.Err == nil && (len(d.List) == 0 || d.List[0].Kind != kind) {
		d.Err = ErrReply
	}
	if d.Err != nil {
		return Reply{}
	}
	r := d.List[0]
	d.List = d.List[1:]
	return r
}

// Text returns a text.
func (d *Decoder) Text() string { return d.next(TextReply).S }

// Int returns a number that is not negative.
func (d *Decoder) Int() int64 {
	n := d.next(IntReply).N
	if n < 0 {
		d.Err = ErrReply
		return 0
	}
	return n
}

// Number is Int for a number that may be sent as a text.
func (d *Decoder) Number() int64 {
	if len(d.List) > 0 && d.List[0].Kind == TextReply {
		return d.Parse(d.Text())
	}
	return d.Int()
}

// Parse returns the number in a text that was read before.
func (d *Decoder) Parse(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if d.Err == nil && (err != nil || n < 0) {
		d.Err = ErrReply
	}
	if d.Err != nil {
		return 0
	}
	return n
}

// Items returns a list.
func (d *Decoder) Items() []Reply { return d.next(ListReply).List }

// Duration returns n microseconds.
func (d *Decoder) Duration(n int64) time.Duration {
	if n > math.MaxInt64/int64(time.Microsecond) {
		d.Err = ErrReply
		return 0
	}
	return time.Duration(n) * time.Microsecond
}

// Micros returns a duration in microseconds.
func (d *Decoder) Micros() time.Duration { return d.Duration(d.Number()) }

// Instant returns a time in microseconds.
func (d *Decoder) Instant() time.Time { return time.UnixMicro(d.Number()) }

// Token returns a token.
func (d *Decoder) Token() fence.Token { return fence.Token(d.Number()) } //nolint:gosec // not negative

// Mode returns the mode that a letter stands for.
func (d *Decoder) Mode(letter string) backend.Mode {
	switch {
	case letter == "s":
		return backend.Shared
	case letter != "x" && d.Err == nil:
		d.Err = ErrReply
	}
	return backend.Exclusive
}

// Millis formats a duration for a program: in milliseconds, rounded up, so that nothing ends before its time.
func Millis(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}
