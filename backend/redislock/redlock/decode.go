package redlock

import (
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// decoder reads an answer of the script. Any client with write access to the server may have
// forged it, so a mismatch is errAnswer.
type decoder struct {
	list []any
	err  error
}

func (d *decoder) next() any {
	if len(d.list) == 0 {
		d.err = errAnswer
		return nil
	}
	v := d.list[0]
	d.list = d.list[1:]
	return v
}

func (d *decoder) text() string {
	s, ok := d.next().(string)
	if !ok {
		d.err = errAnswer
	}
	return s
}

// number returns an integer, given as such or as text. It is never negative.
func (d *decoder) number() int64 {
	switch v := d.next().(type) {
	case int64:
		if v >= 0 {
			return v
		}
	case string:
		return d.parse(v)
	}
	d.err = errAnswer
	return 0
}

func (d *decoder) parse(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		d.err = errAnswer
		return 0
	}
	return n
}

func (d *decoder) sub() *decoder {
	list, ok := d.next().([]any)
	if !ok {
		d.err = errAnswer
	}
	return &decoder{list: list}
}

// vote is what a node has on record for a lease.
type vote struct {
	lease backend.LeaseID
	claim backend.Claim
	owner string
	token fence.Token
	final bool // the token is that of the grant
	left  time.Duration
	since time.Time
	note  string
}

// votes reads pairs of lease and record; now is the node's clock.
func (d *decoder) votes(now int64) []vote {
	all := d.sub()
	var vs []vote
	for len(all.list) > 0 && all.err == nil {
		pair := all.sub()
		vs = append(vs, pair.vote(now))
		if pair.err != nil {
			all.err = pair.err
		}
	}
	if all.err != nil {
		d.err = all.err
	}
	return vs
}

func (d *decoder) vote(now int64) vote {
	const fields = 11
	v := vote{lease: backend.LeaseID(d.text())}
	f := strings.SplitN(d.text(), "\n", fields)
	if len(f) != fields {
		d.err = errAnswer
		return v
	}
	switch f[1] {
	case "x":
	case "s":
		v.claim.Mode = backend.Shared
	default:
		d.err = errAnswer
	}
	v.claim.Permits, v.claim.Limit = int(d.parse(f[2])), int(d.parse(f[3]))
	v.token = fence.Token(d.parse(f[4])) //nolint:gosec // not negative
	v.final = f[5] == "1"
	v.left = micros(d.parse(f[6]) - now)
	v.since = time.UnixMicro(d.parse(f[7]))
	v.owner, v.note = f[9], f[10]
	return v
}

// micros converts a number of microseconds from the script. The result is never negative.
func micros(n int64) time.Duration {
	const most = int64(1<<62) / int64(time.Microsecond)
	return time.Duration(min(max(n, 0), most)) * time.Microsecond
}

// millis formats a duration for the script: in milliseconds, rounded up, so that nothing ends
// before its time.
func millis(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
