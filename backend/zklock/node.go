package zklock

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/seqlock"
)

// entry is a node below a lock: an acquisition that holds the lock or waits. The name contains
// everything that determines the holders, so that one listing of the names is enough:
//
//	x.0.1.LEASE.SESSION.0000000012     mode, limit, permits, lease, session, place
type entry struct {
	node    string // the name, without the path
	claim   backend.Claim
	lease   backend.LeaseID
	session backend.SessionID
	place   int32 // ZooKeeper's sequence number: see isPlace
	apart   bool  // nodes that do not count are between the entry before and this one: see newQueue
}

// LeaseID implements seqlock.Entry.
func (e entry) LeaseID() backend.LeaseID { return e.lease }

// Claim implements seqlock.Entry.
func (e entry) Claim() backend.Claim { return e.claim }

const (
	exclusiveMark, sharedMark = "x", "s"
	nameParts                 = 6
	firstPlace                = "0000000000"

	// places is how many places a container gives: see isPlace.
	places = 1 << 30
)

// isPlace reports whether an entry with that sequence number has a place in the queue. The sequence of
// a container stops at 2147483647, and then all entries have the same number, or a negative one. So a
// container gives no place well before that: see startOver.
func isPlace(number int32) bool { return number >= 0 && number < places }

// prefix returns the name of the entry of a request, without the place.
func prefix(req *backend.AcquireRequest) string {
	mark := exclusiveMark
	if req.Mode == backend.Shared {
		mark = sharedMark
	}
	return fmt.Sprintf("%s.%d.%d.%s.%s.", mark, req.Limit, max(1, req.Permits), req.Lease, req.Session)
}

// parseEntry parses the name of a node. Nodes that are not ours are not entries.
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

// queue is the queue of a lock.
type queue = seqlock.Queue[entry]

// newQueue sorts the nodes below a lock. Of several entries of one lease, which a create that was
// sent twice leaves, only the first counts. Entries without a place do not count.
func newQueue(nodes []string) queue {
	var sorted, all []entry
	for _, n := range nodes {
		if e, ok := parseEntry(n); ok && isPlace(e.place) {
			sorted = append(sorted, e)
		}
	}
	slices.SortFunc(sorted, func(a, b entry) int { return cmp.Compare(a.place, b.place) })
	seen, between := make(map[backend.LeaseID]bool, len(sorted)), false
	for _, e := range sorted {
		if seen[e.lease] {
			between = true
			continue
		}
		seen[e.lease] = true
		e.apart, between = between, false
		all = append(all, e)
	}
	return seqlock.QueueOf(all)
}

// content is the data of an entry's node, for people.
type content struct {
	Owner string `json:"o,omitempty"`
	Note  string `json:"n,omitempty"`
	TTL   int64  `json:"t,omitempty"` // of the session, in nanoseconds
}
