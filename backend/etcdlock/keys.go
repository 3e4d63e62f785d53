package etcdlock

import (
	"fmt"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
)

// The zones of a lock: the byte after its name and the NUL. The code relies on their order: shared
// before exclusive, all entries before the tombstones, and these before the note of a break.
const (
	zoneShared    = 's' // <limit, 6 hex digits><slot>
	zoneExclusive = 'x' // <slot>
	zoneTomb      = 'y' // <lease>: the lease has ended
	zoneNote      = 'z' // the newest break
)

const (
	limitDigits = 6
	// headSlot belongs to no backend value. It is the slot of an entry that was made while there
	// was no other.
	headSlot slot = "!"
)

// keys makes and parses keys. A lock's name is in its keys as it is, ended by a NUL, which no name
// can contain. So different names never share a key, and the order of the keys is the order of the
// names.
type keys struct {
	prefix string // ends in a slash
}

// span is a range of keys: it includes from, but not to.
type span struct{ from, to string }

func (s span) get(opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpGet(s.from, append(opts, clientv3.WithRange(s.to))...)
}

// empty is true if no key is in the range.
func (s span) empty() clientv3.Cmp {
	return compare(s, pb.Compare_EQUAL, &pb.Compare{Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{}})
}

// unchanged is true if nothing in the range was written after the revision. Deletions do not count.
func (s span) unchanged(since int64) clientv3.Cmp {
	return compare(s, pb.Compare_LESS, &pb.Compare{Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{ModRevision: since + 1}})
}

func absent(key string) clientv3.Cmp { return created(key, 0) }

func present(key string) clientv3.Cmp {
	return compare(span{from: key}, pb.Compare_GREATER, &pb.Compare{Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{}})
}

func created(key string, rev int64) clientv3.Cmp {
	return compare(span{from: key}, pb.Compare_EQUAL, &pb.Compare{Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{CreateRevision: rev}})
}

func modified(key string, rev int64) clientv3.Cmp {
	return compare(span{from: key}, pb.Compare_EQUAL, &pb.Compare{Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{ModRevision: rev}})
}

// compare fills in a comparison. The clientv3 functions for that copy the comparison by reflection
// in each step, which took a tenth of the time of an acquisition here.
func compare(s span, result pb.Compare_CompareResult, with *pb.Compare) clientv3.Cmp {
	var cmp clientv3.Cmp
	c := cmp.GetCompare()
	c.Key, c.Result, c.Target, c.TargetUnion = []byte(s.from), result, with.Target, with.TargetUnion
	if s.to != "" {
		c.RangeEnd = []byte(s.to)
	}
	return cmp
}

// all returns the range of everything that this package writes.
func (k keys) all() span { return span{k.prefix, clientv3.GetPrefixRangeEnd(k.prefix)} }

// locks returns the range of every key of the locks whose names start with the prefix.
func (k keys) locks(prefix string) span {
	from := k.prefix + "q/" + prefix
	return span{from, clientv3.GetPrefixRangeEnd(from)}
}

// after returns where the locks start whose names come after this one.
func (k keys) after(name string) string { return k.prefix + "q/" + name + "\x01" }

func (k keys) lock(name string) string { return k.prefix + "q/" + name + "\x00" }

// entries returns the range of all waiting and held leases of a lock.
func (k keys) entries(name string) span {
	return span{k.lock(name), k.lock(name) + string(rune(zoneTomb))}
}

// untouched returns the range of all waiting and held leases, and of all tombstones, of a lock.
func (k keys) untouched(name string) span {
	return span{k.lock(name), k.lock(name) + string(rune(zoneNote))}
}

func (k keys) shared(name string) span {
	return span{k.lock(name) + string(rune(zoneShared)), k.lock(name) + string(rune(zoneShared+1))}
}

func (k keys) exclusive(name string) span {
	return span{k.lock(name) + string(rune(zoneExclusive)), k.lock(name) + string(rune(zoneExclusive+1))}
}

// isExclusive reports whether an entry of the lock is exclusive.
func (k keys) isExclusive(name, key string) bool {
	return strings.HasPrefix(key, k.exclusive(name).from)
}

// sharedWith returns the range of the shared entries with this limit.
func (k keys) sharedWith(name string, limit int) span {
	zone := k.lock(name) + string(rune(zoneShared))
	return span{zone + hexLimit(limit), zone + hexLimit(limit+1)}
}

// otherLimits returns the ranges of the shared entries with any other limit: those below and above.
func (k keys) otherLimits(name string, limit int) (span, span) {
	zone, own := k.shared(name), k.sharedWith(name, limit)
	return span{zone.from, own.from}, span{own.to, zone.to}
}

func (k keys) note(name string) string { return k.lock(name) + string(rune(zoneNote)) }

// entry returns the key of the entry of a lease.
func (k keys) entry(name string, slot slot, mode backend.Mode, limit int) string {
	if mode == backend.Shared {
		return k.lock(name) + string(rune(zoneShared)) + hexLimit(limit) + string(slot)
	}
	return k.lock(name) + string(rune(zoneExclusive)) + string(slot)
}

// head returns the key of an exclusive lease that finds no other entry. Such an entry may have no
// claim: see headed and Backend.puts.
func (k keys) head(name string) string { return k.entry(name, headSlot, backend.Exclusive, 0) }

// headed returns the conditions under which the entry at the head is of that lease.
//
// An entry goes there only while the lock has no entry at all. So there is at most one entry
// without a claim, and no other entry of its lease is older. It is therefore enough to check this
// before making another one. The check compares with how the value of an entry begins.
func (k keys) headed(name string, id backend.LeaseID) []clientv3.Cmp {
	begins := `{"lease":"` + string(id)
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.Value(k.head(name)), ">", begins+`"`),
		clientv3.Compare(clientv3.Value(k.head(name)), "<", begins+`#`), // '#' follows '"'
	}
}

// claim returns the key that makes a lease exist only once. It is made and deleted with the entry,
// whose key is its value; but it outlives the entry of a timed lease that was released.
func (k keys) claim(name string, id backend.LeaseID) string {
	return k.prefix + "c/" + name + "\x00" + string(id)
}

// session returns the key of the record of a session, which lives and dies with the session.
func (k keys) session(id backend.SessionID) string { return k.prefix + "s/" + string(id) + "\x00" }

// sessionAll returns the range of the record of a session and its broken leases.
func (k keys) sessionAll(id backend.SessionID) span {
	return span{k.session(id), k.prefix + "s/" + string(id) + "\x01"}
}

// broken returns the key that notifies a session that one of its leases was broken.
func (k keys) broken(id backend.SessionID, lease backend.LeaseID) string {
	return k.session(id) + string(lease)
}

// opened returns the key that records that a session exists, or existed.
func (k keys) opened(id backend.SessionID) string { return k.prefix + "d/" + string(id) }

// tombstone returns the key that records that a lease has ended.
func (k keys) tombstone(name string, id backend.LeaseID) string {
	return k.lock(name) + string(rune(zoneTomb)) + string(id)
}

func hexLimit(limit int) string { return fmt.Sprintf("%0*x", limitDigits, limit) }

// place is the content of the key of an entry.
type place struct {
	name  string
	zone  byte
	limit int
	slot  slot
}

// parse parses a key of a lock. It returns false for any other key.
func (k keys) parse(key string) (place, bool) {
	rest, ok := strings.CutPrefix(key, k.prefix+"q/")
	if !ok {
		return place{}, false
	}
	name, tail, ok := strings.Cut(rest, "\x00")
	if !ok || name == "" || tail == "" {
		return place{}, false
	}
	p := place{name: name, zone: tail[0], slot: slot(tail[1:])}
	switch p.zone {
	case zoneNote:
		return p, p.slot == ""
	case zoneShared:
		if len(p.slot) <= limitDigits {
			return place{}, false
		}
		n, err := strconv.ParseUint(string(p.slot[:limitDigits]), 16, 32)
		if err != nil || hexLimit(int(n)) != string(p.slot[:limitDigits]) {
			return place{}, false
		}
		p.limit, p.slot = int(n), p.slot[limitDigits:]
	case zoneExclusive:
	default:
		return place{}, false
	}
	return p, p.slot != ""
}

// parseClaim parses the key of a claim.
func (k keys) parseClaim(key string) (leaseKey, bool) {
	rest, ok := strings.CutPrefix(key, k.prefix+"c/")
	if !ok {
		return leaseKey{}, false
	}
	name, id, ok := strings.Cut(rest, "\x00")
	return leaseKey{name, backend.LeaseID(id)}, ok
}

// parseSession parses the key of a session's record, or of a broken lease of the session: then the
// lease is not empty.
func (k keys) parseSession(key string) (backend.LeaseID, bool) {
	rest, ok := strings.CutPrefix(key, k.prefix+"s/")
	if !ok {
		return "", false
	}
	id, lease, ok := strings.Cut(rest, "\x00")
	return backend.LeaseID(lease), ok && id != ""
}
