package redislock

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// decoder reads an answer of the script from its front. It never panics: after the first
// mismatch err is set, and all methods return zero values.
type decoder struct {
	list []reply
	err  error
}

func (d *decoder) next(kind replyKind) reply {
	if d.err == nil && (len(d.list) == 0 || d.list[0].kind != kind) {
		d.err = errReply
	}
	if d.err != nil {
		return reply{}
	}
	r := d.list[0]
	d.list = d.list[1:]
	return r
}

func (d *decoder) text() string { return d.next(textReply).s }

func (d *decoder) int() int64 {
	n := d.next(intReply).n
	if n < 0 {
		d.err = errReply
		return 0
	}
	return n
}

func (d *decoder) items() []reply { return d.next(listReply).list }

// micros returns a duration in microseconds.
func (d *decoder) micros() time.Duration { return micros(d.int(), &d.err) }

func (d *decoder) instant() time.Time { return time.UnixMicro(d.int()) }

func (d *decoder) token() fence.Token { return fence.Token(d.int()) } //nolint:gosec // int gives no negative number

func micros(n int64, err *error) time.Duration {
	if n > math.MaxInt64/int64(time.Microsecond) {
		*err = errReply
		return 0
	}
	return time.Duration(n) * time.Microsecond
}

// granted is a grant as the script returns it.
type granted struct {
	token fence.Token
	since time.Time
	left  time.Duration // 0 for a lease that lives with its session
	flag  string        // "w" waited, "-" did not
	fresh bool          // granted by the call that returned it
}

// leastToken is LEAST of lua/main.lua: an integer below it is the answer to another command.
const leastToken = 1e15

// grantedAt is the grant of a token that is also its time. See takeone in lua/main.lua.
func grantedAt(token int64) granted {
	return granted{token: fence.Token(token), since: time.UnixMicro(token), flag: "-"} //nolint:gosec // positive
}

// grant reads what follows a "G".
func (d *decoder) grant() granted {
	g := granted{token: d.token(), since: d.instant(), left: d.micros(), flag: d.text()}
	if len(d.list) > 0 {
		g.fresh = d.int() == 1
	}
	return g
}

func (g granted) grant(asked time.Time) backend.Grant {
	return backend.Grant{
		Token: g.token, Asked: asked, Left: g.left, Since: g.since, Waited: g.flag == "w",
	}
}

// record splits the record of a holder or a waiter.
func (d *decoder) record() []string {
	const fields = 10
	f := strings.SplitN(d.text(), "\n", fields)
	if len(f) != fields {
		d.err = errReply
		return make([]string, fields)
	}
	return f
}

func (d *decoder) number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if d.err == nil && (err != nil || n < 0) {
		d.err = errReply
	}
	if d.err != nil {
		return 0
	}
	return n
}

func (d *decoder) mode(s string) backend.Mode {
	switch s {
	case "x":
		return backend.Exclusive
	case "s":
		return backend.Shared
	default:
		if d.err == nil {
			d.err = errReply
		}
		return backend.Exclusive
	}
}

// holders reads a list of lease, record and time left.
func (d *decoder) holders() []backend.Holder {
	items := d.items()
	var hs []backend.Holder
	for _, item := range items {
		h := d.holder(item.list)
		if d.err != nil {
			return nil
		}
		hs = append(hs, h)
	}
	return hs
}

func (d *decoder) holder(list []reply) backend.Holder {
	in := decoder{list: list}
	h := backend.Holder{Lease: backend.LeaseID(in.text())}
	f := in.record()
	h.Left = in.micros()
	if f[5] == "0" {
		h.Session = backend.SessionID(f[0])
	}
	h.Mode = in.mode(f[1])
	h.Permits = int(in.number(f[2]))
	h.Token = fence.Token(in.number(f[3])) //nolint:gosec // not negative
	h.Since = time.UnixMicro(in.number(f[4]))
	h.Owner, h.Note = f[8], f[9]
	if in.err != nil && d.err == nil {
		d.err = in.err
	}
	return h
}

func (d *decoder) waiters() []backend.Waiter {
	var ws []backend.Waiter
	for _, item := range d.items() {
		in := decoder{list: item.list}
		w := backend.Waiter{Lease: backend.LeaseID(in.text())}
		f := in.record()
		w.Session = backend.SessionID(f[0])
		w.Mode = in.mode(f[1])
		w.Permits = int(in.number(f[2]))
		w.Since = time.UnixMicro(in.number(f[4]))
		w.Owner, w.Note = f[8], f[9]
		if in.err != nil {
			d.err = in.err
			return nil
		}
		ws = append(ws, w)
	}
	return ws
}

// lock reads the state of a lock.
func (d *decoder) lock() backend.LockInfo {
	info := backend.LockInfo{
		Name: d.text(), Limit: int(d.int()), Token: d.token(), Holders: d.holders(), Waiters: d.waiters(),
	}
	sortHolders(info.Holders)
	return info
}
