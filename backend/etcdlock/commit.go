package etcdlock

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// batchSize bounds the requests in one transaction. With up to 8 operations in each, it stays
	// below the 128 that etcd allows in all (--max-txn-ops counts the outer operations and those of
	// one inner transaction together).
	batchSize = 64
	// rideTime is how long a change that joins a queue waits for another change of that lock to
	// travel with. It would not be served before others anyway.
	rideTime = 5 * time.Millisecond
)

// committer groups the changes that many callers request at the same time into one transaction.
// Changes that come while a transaction is under way go with the next one. A change that joins a
// queue in which others of this process wait travels with the next of these that leaves.
type committer struct {
	b        *Backend
	mu       sync.Mutex
	pending  []*change
	running  bool          // a caller, or a goroutine, sends, and then takes what is pending
	riders   []*change     // they wait for at most patience
	patience time.Duration // rideTime, except in tests
	nest     int           // how many batches are not tried flat; of the one that sends
}

// change is one request for one lock: a transaction of its own inside that of the batch.
type change struct {
	name string // of the lock: a batch never has two changes of the same one, except as kind says
	// kind determines what may travel with it.
	kind      kind
	rides     bool // it may wait for another change to travel with
	flat      bool // it was sent as a part of the transaction, not as an inner one
	cmps      []clientv3.Cmp
	then, els []clientv3.Op
	done      chan committed // capacity 1
}

// kind is the kind of a change. Two entries made in one transaction would share a revision, which
// is their place and their token; and conditions are evaluated as of the moment before the
// transaction. So a batch has one change of a lock, or one that leaves and one that joins behind
// the last entry. The first does not depend on who joins, and the second is made after it and reads
// the queue then.
type kind uint8

const (
	alone  kind = iota
	leaves      // deletes one entry
	joins       // reads the last entry of the queue, then makes one
)

// committed is the answer to a change.
type committed struct {
	resp *pb.TxnResponse
	rev  int64 // of the transaction: the create revision of what it created
	err  error
}

// commit sends the change and waits for the answer. If ctx ends first the change may or may not be
// made, which the error reports.
func (c *committer) commit(ctx context.Context, op string, ch *change) (*pb.TxnResponse, int64, error) {
	ch.done = make(chan committed, 1)
	if c.enter(ch) {
		// Changes requested at the same time, such as those of the items of one request to our
		// server, travel along.
		runtime.Gosched()
		c.depart(ctx, c.take())
	}
	select {
	case r := <-ch.done:
		return r.resp, r.rev, fail(ctx, op, r.err, true)
	case <-ctx.Done():
	}
	if c.withdraw(ch) {
		return nil, 0, fail(ctx, op, errUnsent, true)
	}
	select {
	case r := <-ch.done:
		return r.resp, r.rev, fail(ctx, op, r.err, true)
	default:
		return nil, 0, fail(ctx, op, context.Cause(ctx), true)
	}
}

// depart sends what the caller of a change took. The caller is inside a call, so Close waits for
// what depart starts.
func (c *committer) depart(ctx context.Context, batch []*change) {
	if len(batch) > 1 {
		c.b.calls.Go(func() { c.run(batch) }) // the end of ctx must not end the other callers' changes
		return
	}
	// Sending from the caller's goroutine is faster than having it sent. Changes that came in
	// the meantime are sent by another goroutine.
	c.send(ctx, batch)
	if more := c.take(); more != nil {
		c.b.calls.Go(func() { c.run(more) })
	}
}

// enter has the change sent, or returns true if the caller must take the pending changes, of which its own is
// the only one or the first, and send them.
func (c *committer) enter(ch *change) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ch.rides {
		c.riders = append(c.riders, ch)
		time.AfterFunc(c.patience, func() { c.sendAlone(ch) })
		return false
	}
	return c.admit(ch)
}

// admit adds a change to the pending ones. It returns true if the caller must have them taken and sent. c.mu is
// held.
func (c *committer) admit(ch *change) bool {
	c.pending = append(c.pending, ch)
	if c.running {
		return false
	}
	c.running = true
	return true
}

// sendAlone sends a rider that has waited for long enough.
func (c *committer) sendAlone(ch *change) {
	c.mu.Lock()
	start := remove(&c.riders, ch) && c.admit(ch)
	c.mu.Unlock()
	if start {
		c.b.background(func(context.Context) { c.run(c.take()) })
	}
}

// rider removes and returns a change that travels with ch, or returns nil.
func (c *committer) rider(ch *change) *change {
	if ch.kind != leaves {
		return nil
	}
	i := slices.IndexFunc(c.riders, func(r *change) bool { return r.name == ch.name })
	if i < 0 {
		return nil
	}
	first := c.riders[i]
	c.riders = slices.Delete(c.riders, i, i+1)
	return first
}

// remove removes a change, and reports whether it was there.
func remove(from *[]*change, ch *change) bool {
	i := slices.Index(*from, ch)
	if i < 0 {
		return false
	}
	*from = slices.Delete(*from, i, i+1)
	return true
}

// withdraw removes a change that has not been sent yet, and reports whether it could.
func (c *committer) withdraw(ch *change) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return remove(&c.riders, ch) || remove(&c.pending, ch)
}

// run sends the batch, and then others until there is nothing to send.
func (c *committer) run(batch []*change) {
	for batch != nil {
		c.send(c.b.base, batch)
		batch = c.take()
	}
}

// take takes the oldest changes of different locks. It returns nil and ends the run if there are
// none.
func (c *committer) take() []*change {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) == 0 {
		c.running = false
		return nil
	}
	batch := make([]*change, 0, min(len(c.pending), batchSize))
	names := make(map[string]kind, cap(batch))
	rest := c.pending[:0]
	for _, ch := range c.pending {
		has, taken := names[ch.name]
		if taken && !travel(has, ch.kind) || len(batch) == batchSize {
			rest = append(rest, ch)
			continue
		}
		batch = append(batch, ch)
		if taken {
			names[ch.name] = alone // nothing else of this lock may travel
			continue
		}
		names[ch.name] = ch.kind
		if rider := c.rider(ch); rider != nil {
			names[ch.name] = alone
			batch = append(batch, rider)
		}
	}
	clear(c.pending[len(rest):])
	c.pending = rest
	// A change that leaves goes first, so that a change that joins reads the queue without it.
	slices.SortStableFunc(batch, func(a, b *change) int { return cmp.Compare(a.kind, b.kind) })
	return batch
}

// travel reports whether two changes of one lock may be in one batch.
func travel(a, b kind) bool { return a == leaves && b == joins || a == joins && b == leaves }
