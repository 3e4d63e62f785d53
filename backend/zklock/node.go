package zklock

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
)

// entry is a node below a lock: an acquisition that is out or in line. What decides who
// is out is in its name, so that one listing of the names tells it:
//
//	x.0.1.LEASE.SESSION.0000000012     mode, limit, permits, lease, session, place
type entry struct {
	node    string // the name, without the path
	claim   backend.Claim
	lease   backend.LeaseID
	session backend.SessionID
	place   int32 // ZooKeeper's sequence number
}

const (
	exclusiveMark, sharedMark = "x", "s"
	nameParts                 = 6
)

// prefix is the name of the entry of a request, without the place.
func prefix(req *backend.AcquireRequest) string {
	mark := exclusiveMark
	if req.Mode == backend.Shared {
		mark = sharedMark
	}
	return fmt.Sprintf("%s.%d.%d.%s.%s.", mark, req.Limit, max(1, req.Permits), req.Lease, req.Session)
}

// parseEntry reads the name of a node; others than ours are not entries.
func parseEntry(node string) (entry, bool) {
	parts := strings.Split(node, ".")
	if len(parts) != nameParts {
		return entry{}, false
	}
	limit, err1 := strconv.Atoi(parts[1])
	permits, err2 := strconv.Atoi(parts[2])
	place, err3 := strconv.ParseInt(parts[5], 10, 32)
	if err1 != nil || err2 != nil || err3 != nil || parts[0] != exclusiveMark && parts[0] != sharedMark {
		return entry{}, false
	}
	e := entry{
		node: node, lease: backend.LeaseID(parts[3]), session: backend.SessionID(parts[4]), place: int32(place),
		claim: backend.Claim{Limit: limit, Permits: permits},
	}
	if parts[0] == sharedMark {
		e.claim.Mode = backend.Shared
	}
	return e, true
}

// line is what is out and what waits, in order of the places. As nobody is overtaken,
// what is out is always the front of the line: as far as it fits.
type line struct {
	all []entry
	out int // how many of them
}

// newLine sorts the nodes below a lock. Of several entries of one lease, which a create
// that was asked twice leaves, only the first counts.
func newLine(nodes []string) line {
	var l line
	for _, n := range nodes {
		if e, ok := parseEntry(n); ok {
			l.all = append(l.all, e)
		}
	}
	// Serial numbers (RFC 1982): they wrap around after 2^31 entries of one lock.
	slices.SortFunc(l.all, func(a, b entry) int { return cmp.Compare(a.place-b.place, 0) })
	seen := make(map[backend.LeaseID]bool, len(l.all))
	l.all = slices.DeleteFunc(l.all, func(e entry) bool {
		again := seen[e.lease]
		seen[e.lease] = true
		return again
	})
	l.out = backend.Admit(nil, l.claims())
	return l
}

func (l line) claims() []backend.Claim {
	cs := make([]backend.Claim, len(l.all))
	for i, e := range l.all {
		cs[i] = e.claim
	}
	return cs
}

// find is the index of a lease; -1: it is not there.
func (l line) find(id backend.LeaseID) int {
	return slices.IndexFunc(l.all, func(e entry) bool { return e.lease == id })
}

// admits reports whether a claim that comes last would be out at once.
func (l line) admits(c backend.Claim) bool {
	return l.out == len(l.all) && c.Fits(l.claims())
}

// before is the entry whose end the one at i waits for; ok is false when it has to look
// at every change of the line. One that is exclusive needs all before it to be gone, a
// reader those that are exclusive: the nearest of them is the last to go, and the others
// are looked at then. With permits a lease that is given back anywhere may be enough.
func (l line) before(i int) (entry, bool) {
	c := l.all[i].claim
	switch {
	case c.Mode == backend.Exclusive:
		return l.all[i-1], true
	case c.Limit > 0:
		return entry{}, false
	}
	for j := i - 1; j >= 0; j-- {
		if l.all[j].claim.Mode == backend.Exclusive {
			return l.all[j], true
		}
	}
	return entry{}, false
}

// content is what is in an entry's node, for people.
type content struct {
	Owner string `json:"o,omitempty"`
	Note  string `json:"n,omitempty"`
	TTL   int64  `json:"t,omitempty"` // of the session, in nanoseconds
	Since int64  `json:"s,omitempty"` // of a grant that waited: nanoseconds of Unix time
}

func (c content) encode() []byte {
	b, err := json.Marshal(c)
	if err != nil {
		return nil // strings and numbers cannot fail
	}
	return b
}

// notice is what a break tells the session of its victim.
type notice struct {
	Lease  backend.LeaseID `json:"l"`
	Reason string          `json:"r,omitempty"`
}

// nodeName is the name of a lock as that of a node: bytes that ZooKeeper does not allow,
// or that mean something in a path, are %XX.
func nodeName(name string) string {
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; plainByte(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func plainByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-_:@=+,", c) >= 0
}

// lockName is the inverse of nodeName.
func lockName(node string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(node); i++ {
		c := node[i]
		if c == '%' {
			if i+3 > len(node) {
				return "", false
			}
			n, err := strconv.ParseUint(node[i+1:i+3], 16, 8)
			if err != nil {
				return "", false
			}
			c, i = byte(n), i+2
		} else if !plainByte(c) {
			return "", false
		}
		b.WriteByte(c)
	}
	return b.String(), true
}
