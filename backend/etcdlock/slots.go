package etcdlock

import (
	"crypto/rand"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
)

// slot is the last part of an entry's key: the backend value that made the entry, and a number.
//
// A key of its own for each lease would be simpler. But etcd's index keeps every key that ever
// existed until it compacts, and each range read passes over the dead ones: a lock that changes
// hands a thousand times a second would be slow within the minute. So keys are reused.
type slot string

type leaseKey struct {
	name string
	id   backend.LeaseID
}

// placed is a lease whose entry is, or may be, in a slot of this value.
type placed struct {
	leaseKey
	number int
	slot   slot

	// Guarded by slots.mu.
	users int              // calls of Acquire under way
	asked *session         // of the newest of them; nil: none
	key   string           // of the entry, once it certainly exists
	rev   int64            // its create revision
	sess  *session         // the session it is held under; nil: none, or in the queue
	until time.Time        // when a timed lease that is held expires, as far as is known
	pool  clientv3.LeaseID // the etcd lease it shares with others; NoLease: none
}

// slots tracks what this value has in etcd. It may be wrong about slots being free, because leases
// end without it: the transactions check that.
type slots struct {
	prefix string

	mu      sync.Mutex
	placed  map[leaseKey]*placed
	used    map[string]map[int]struct{} // by lock
	sweepAt int                         // the size of placed at which to remove what has expired
}

const firstSweep = 1024

func newSlots() *slots {
	return &slots{
		prefix: rand.Text()[:10] + "-", placed: make(map[leaseKey]*placed),
		used: make(map[string]map[int]struct{}), sweepAt: firstSweep,
	}
}

// take assigns the lease, which is requested under a session, a slot: the one that it has, or the lowest
// that is free.
func (s *slots) take(id leaseKey, sess *session) *placed {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.placed[id]; ok {
		p.users++
		p.asked = sess
		return p
	}
	if len(s.placed) >= s.sweepAt {
		s.sweep()
	}
	p := &placed{leaseKey: id, users: 1, asked: sess}
	s.number(p, 0)
	s.placed[id] = p
	return p
}

// shares reports whether other leases of this value hold the lock of p or wait for it.
func (s *slots) shares(p *placed) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.used[p.name]) > 1
}

// number gives p the lowest free number from least on.
func (s *slots) number(p *placed, least int) {
	used := s.used[p.name]
	if used == nil {
		used = make(map[int]struct{})
		s.used[p.name] = used
	}
	n := least
	for {
		if _, ok := used[n]; !ok {
			break
		}
		n++
	}
	used[n] = struct{}{}
	p.number, p.slot = n, slot(s.prefix+strconv.Itoa(n))
}

// leave records that a call of Acquire has ended. Its slot is free again if there is no entry: that
// is so if the lease has ended, unless it may be in the queue.
func (s *slots) leave(p *placed, over, perhapsInQueue bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.users--
	if !over || p.users > 0 || perhapsInQueue && p.key != "" || s.placed[p.leaseKey] != p {
		return
	}
	s.remove(p.leaseKey)
}

// move gives p another slot, because its own turned out to be taken. It never returns to a slot that
// it had: leases may be in slots that this value does not know of.
func (s *slots) move(p *placed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := p.number
	s.number(p, old+1)
	s.clear(p.name, old)
}

// stand records that the entry exists.
func (s *slots) stand(p *placed, key string, rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.key, p.rev = key, rev
}

// held records that the lease is held under a session.
func (s *slots) held(p *placed, sess *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.sess = sess
}

// timed records that a timed lease is held from now on, and which etcd lease it shares, if any.
func (s *slots) timed(id leaseKey, ttl time.Duration, pool clientv3.LeaseID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.placed[id]; ok {
		p.until, p.pool = time.Now().Add(ttl+expiryLag), pool
	}
}

// find returns the entry of a lease, if this value knows it.
func (s *slots) find(id leaseKey) (entryRef, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.placed[id]
	if !ok || p.key == "" {
		return entryRef{}, false
	}
	return entryRef{key: p.key, rev: p.rev, alone: !p.until.IsZero() && p.pool == clientv3.NoLease, pool: p.pool, held: p.sess != nil}, true
}

// drop forgets a lease that has no entry any more.
func (s *slots) drop(id leaseKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(id)
}

func (s *slots) remove(id leaseKey) {
	if p, ok := s.placed[id]; ok {
		delete(s.placed, id)
		s.clear(p.name, p.number)
	}
}

func (s *slots) clear(name string, number int) {
	delete(s.used[name], number)
	if len(s.used[name]) == 0 {
		delete(s.used, name)
	}
}

// under returns the leases that are held under a session, by the keys of their entries.
func (s *slots) under(sess *session) map[string]leaseKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make(map[string]leaseKey)
	for _, p := range s.placed {
		if p.sess == sess {
			keys[p.key] = p.leaseKey
		}
	}
	return keys
}

// ended forgets the leases that were held under a session, and those that it may have left in queues. A
// call under way ends with the session.
func (s *slots) ended(sess *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, p := range s.placed {
		left := p.asked == sess && p.sess == nil && p.until.IsZero() && p.users == 0
		if p.sess == sess || left {
			s.remove(id)
		}
	}
}

// sweep forgets the timed leases that have expired.
func (s *slots) sweep() {
	now := time.Now()
	for id, p := range s.placed {
		if !p.until.IsZero() && now.After(p.until) {
			s.remove(id)
		}
	}
	s.sweepAt = max(firstSweep, 2*len(s.placed))
}
