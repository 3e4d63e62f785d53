package seqlock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/seqlock"
	"github.com/holdfast-io/holdfast/internal/testkit/simulate"
)

// keys is a store with ordered keys in memory, as ZooKeeper and Consul are: it counts its changes, a key belongs to a
// session of the store and ends with it, and a transaction happens at one moment.
type keys struct {
	mu      sync.Mutex // guards all below
	changes uint64
	owners  map[*owner]bool          // that live
	queues  map[string][]*item       // in order
	moved   map[string]chan struct{} // closed with the next change of a queue
	items   map[seqlock.Key]*item
	buried  map[seqlock.Key]bool // abandoned leases
}

// owner is a session of the store.
type owner struct {
	ends    time.Time
	end     *time.Timer
	notices []byte
	told    chan struct{} // closed with the next change of the notices, or with the end
}

// entry is a lease in a queue.
type item struct {
	seqlock.Key

	claim backend.Claim
	owner *owner
	place uint64
	about backend.Holder // for people
}

func (e *item) LeaseID() backend.LeaseID { return e.ID }
func (e *item) Claim() backend.Claim     { return e.claim }

type queue = seqlock.Queue[*item]

func newKeys() *keys {
	return &keys{
		owners: make(map[*owner]bool), queues: make(map[string][]*item),
		moved: make(map[string]chan struct{}), items: make(map[seqlock.Key]*item), buried: make(map[seqlock.Key]bool),
	}
}

var errGone = errors.New("the session is gone")

// change counts a change of a queue, and wakes those that watch it. The mutex is held.
func (k *keys) change(lock string) uint64 {
	k.changes++
	if moved := k.moved[lock]; moved != nil {
		close(moved)
		delete(k.moved, lock)
	}
	return k.changes
}

// remove deletes an entry. The mutex is held.
func (k *keys) remove(e *item) {
	k.queues[e.Name] = slices.DeleteFunc(k.queues[e.Name], func(x *item) bool { return x == e })
	delete(k.items, e.Key)
	if len(k.queues[e.Name]) == 0 {
		delete(k.queues, e.Name)
	}
	k.change(e.Name)
}

// open makes a session of the store, which ends when it was not renewed for the time.
func (k *keys) open(ttl time.Duration) *owner {
	k.mu.Lock()
	defer k.mu.Unlock()
	o := &owner{ends: time.Now().Add(ttl), told: make(chan struct{})}
	o.end = time.AfterFunc(ttl, func() { k.end(o) })
	k.owners[o] = true
	return o
}

// renew reports whether the session lives, and lets it live for the time.
func (k *keys) renew(o *owner, ttl time.Duration) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.owners[o] {
		return false
	}
	o.ends = time.Now().Add(ttl)
	o.end.Reset(ttl)
	return true
}

// end ends a session of the store with its entries.
func (k *keys) end(o *owner) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.owners[o] {
		return
	}
	delete(k.owners, o)
	o.end.Stop()
	close(o.told)
	for _, all := range k.queues {
		for _, e := range slices.Clone(all) {
			if e.owner == o {
				k.remove(e)
			}
		}
	}
}

// join makes the entry of a lease, or finds it, and returns the queue.
func (k *keys) join(e item) (queue, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.items[e.Key]
	switch {
	case k.buried[e.Key], was != nil && was.owner != e.owner:
		return queue{}, backend.ErrLost
	case !k.owners[e.owner]:
		return queue{}, errGone
	case was == nil:
		e.place = k.change(e.Name)
		k.items[e.Key] = &e
		k.queues[e.Name] = append(k.queues[e.Name], &e)
	}
	return k.queue(e.Name), nil
}

// queue returns the queue of a lock. The mutex is held.
func (k *keys) queue(lock string) queue { return seqlock.QueueOf(slices.Clone(k.queues[lock])) }

// read returns the queue of a lock, and what is closed when that changes.
func (k *keys) read(lock string) (queue, <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.moved[lock] == nil {
		k.moved[lock] = make(chan struct{})
	}
	return k.queue(lock), k.moved[lock]
}

// leave deletes the entry of a lease if the others exist. The first result reports whether they do, the second whether
// there was an entry.
func (k *keys) leave(key seqlock.Key, others []*item, bury bool) (bool, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range others {
		if k.items[e.Key] != e {
			return false, false
		}
	}
	if bury {
		k.buried[key] = true
	}
	e := k.items[key]
	if e != nil {
		k.remove(e)
	}
	return true, e != nil
}

// evict deletes entries, if all of them exist, and notifies their owners.
func (k *keys) evict(victims []seqlock.Victim[*item], reason string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range victims {
		if k.items[v.Entry.Key] != v.Entry {
			return false
		}
	}
	for _, v := range victims {
		k.remove(v.Entry)
		o := v.Entry.owner
		o.notices, _ = seqlock.AddNotices(o.notices, []seqlock.Notice{{Lease: v.Entry.ID, Reason: reason}}, 1)
		close(o.told)
		o.told = make(chan struct{})
	}
	return true
}

// notices returns the notices of a session, and what is closed when they change. False: the session has ended.
func (k *keys) notices(o *owner) ([]seqlock.Notice, <-chan struct{}, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return seqlock.Notices(o.notices), o.told, k.owners[o]
}

// left returns for how long a session lives unless it is renewed.
func (k *keys) left(o *owner) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Until(o.ends)
}

// missing returns those of the leases of a session that have no entry.
func (k *keys) missing(o *owner, held []seqlock.Key) []seqlock.Key {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(held), func(x seqlock.Key) bool {
		e := k.items[x]
		return e != nil && e.owner == o
	})
}

// way is the way of one value to the keys.
type way struct {
	*keys

	net  *simulate.Network
	down atomic.Int32 // 0: as net says
}

const (
	losesRequests = iota + 1
	losesAnswers
	refuses
	refusesTheSecond
)

// ask carries a request whose answer is a value.
func ask[T any](ctx context.Context, w *way, do func() T) (T, error) {
	var none T
	switch w.down.Load() {
	case losesRequests:
		return none, simulate.ErrCut
	case losesAnswers:
		do()
		return none, simulate.ErrCut
	case refuses:
		return none, simulate.ErrRefused
	case refusesTheSecond:
		w.down.Store(refuses)
	}
	return simulate.Ask(ctx, w.net, true, func(context.Context) (T, error) { return do(), nil })
}
