package redislock

import (
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/fence"
)

// decoder reads an answer of the script from its front: see program.Decoder.
type decoder struct{ program.Decoder }

func decode(list []reply) decoder { return decoder{program.Decoder{List: list}} }

// granted is a grant as the script returns it.
type granted struct {
	token fence.Token
	since time.Time
	left  time.Duration // 0 for a lease that lives with its session
	flag  string        // "w" waited, "-" did not
	fresh bool          // granted by the call that returned it
}

// briefly reads the token and the time of a lease that went the shortest way: see takeone in lua/short.lua.
func briefly(r reply) (granted, error) {
	token, since, _ := strings.Cut(r.S, "\n")
	d := decode(nil)
	g := granted{token: fence.Token(d.Parse(token)), since: time.UnixMicro(d.Parse(since)), flag: "-"} //nolint:gosec // not negative
	return g, d.Err
}

// grant reads what follows a "G".
func (d *decoder) grant() granted {
	g := granted{token: d.Token(), since: d.Instant(), left: d.Micros(), flag: d.Text()}
	if len(d.List) > 0 {
		g.fresh = d.Int() == 1
	}
	return g
}

func (g granted) grant(asked time.Time) backend.Grant {
	return backend.Grant{
		Token: g.token, Asked: asked, Left: g.left, Since: g.since, Waited: g.flag == "w",
	}
}

// each reads what every one of the lists is.
func each[T any](d *decoder, lists []reply, read func(*decoder) T) []T {
	var all []T
	for _, list := range lists {
		in := decode(list.List)
		all = append(all, read(&in))
		if in.Err != nil {
			d.Err = in.Err
			return nil
		}
	}
	return all
}

// holder reads what shown in lua/acquire.lua returns.
func (d *decoder) holder() backend.Holder {
	return backend.Holder{
		Lease: backend.LeaseID(d.Text()), Session: backend.SessionID(d.Text()), Mode: d.Mode(d.Text()), Permits: int(d.Int()),
		Token: d.Token(), Since: d.Instant(), Left: d.Micros(), Owner: d.Text(), Note: d.Text(),
	}
}

func (d *decoder) waiter() backend.Waiter {
	h := d.holder()
	return backend.Waiter{
		Lease: h.Lease, Session: h.Session, Mode: h.Mode, Permits: h.Permits, Since: h.Since, Owner: h.Owner, Note: h.Note,
	}
}

func (d *decoder) holders() []backend.Holder {
	hs := each(d, d.Items(), (*decoder).holder)
	program.SortHolders(hs)
	return hs
}

// lock reads the state of a lock.
func (d *decoder) lock() backend.LockInfo {
	return backend.LockInfo{
		Name: d.Text(), Limit: int(d.Int()), Token: d.Token(), Holders: d.holders(),
		Waiters: each(d, d.Items(), (*decoder).waiter),
	}
}
