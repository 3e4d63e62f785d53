package consullock

import (
	"context"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// A contended lock is handed over within this process without a query. The follower of its queue
// knows the queue as of an index. Entries made since are behind all that existed then; some of
// those may be gone, and nothing else can have changed. So when the first entry is deleted, the
// second is the front of the queue and holds the lock, if only it still exists: the transaction
// that deletes the first finds that out. This is a hand-over.

// hush is how long after such a hand-over no query is made for the waiters here: while a lock
// passes from one to the next there is nothing to query.
const hush = 10 * time.Millisecond

const (
	// enough is how many entries a known queue must have for others to join it without reading it.
	// The longer a queue, the more it costs to read; and a short one soon comes to its end.
	enough = 16
	// atOnce is how many acquires that come to a lock at the same time read its queue. The others
	// wait for what those have read.
	atOnce = 4
)

// joinsBlind reports whether an acquire that wants the lock exclusively, and waits for it, need not read
// the queue that it joins: enough of the queue is known, or other acquires are reading it at this
// moment. The caller must call the function when the acquire has joined.
func (b *Backend) joinsBlind(lock string) (bool, func()) {
	f := b.followerOf(lock)
	blind := false
	if f != nil {
		blind = len(f.heard.All) > enough
		f.mu.Unlock()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if blind || b.coming[lock] >= atOnce {
		return true, func() {}
	}
	b.coming[lock]++
	return false, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.coming[lock]--; b.coming[lock] == 0 {
			delete(b.coming, lock)
		}
	}
}

// hear adopts what an acquire has read of the queue, if that is newer. mu is held.
func (f *follower) hear(seen *sight) {
	if seen.index > f.heard.index {
		f.take(seen)
		f.moved = true
	}
}

// known returns the index of the known queue, and how many waiters have come.
func (f *follower) known() (uint64, uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.heard.index, f.came
}

// take adopts the queue as it was read, unless what became known in the meantime is newer. If it is
// older than what was known before the read, the store was put back to an earlier time. mu is held.
func (f *follower) take(seen *sight) {
	switch {
	case seen.index < seen.since:
		f.passed = 0
	case seen.index < f.heard.index:
		return
	}
	f.heard = seen.behind(f.passed)
}

// followerOf returns the lock's follower, locked, or nil if no caller here waits for the lock.
func (b *Backend) followerOf(lock string) *follower {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.followers[lock]
	if f != nil {
		f.mu.Lock()
	}
	return f
}

// beginHandOver returns the key of the entry that holds the lock when the given key is deleted, if that
// entry is known and belongs to a waiter here; otherwise nothing. It is never a reader,
// because there may be more of them. A caller that got a key must report the outcome to endHandOver.
func (b *Backend) beginHandOver(lock, key string) string {
	f := b.followerOf(lock)
	if f == nil {
		return ""
	}
	defer f.mu.Unlock()
	q := f.heard
	if f.giving != nil || len(q.All) < 2 || q.All[0].key != key || q.Claims[1].Mode != backend.Exclusive || f.waiting(q.All[1]) == nil {
		return ""
	}
	f.giving = make(chan struct{})
	return q.All[1].key
}

// waiting returns the waiter here for the entry that was not told yet, or nil if there is none. mu
// is held.
func (f *follower) waiting(e entry) *waiter {
	for w := range f.waiters {
		if w.lease == e.lease && w.created == e.created && !w.told {
			return w
		}
	}
	return nil
}

// endHandOver ends what beginHandOver began. The pairs are the answer to the release, that of the next
// waiter last. nil means that it is not known that the place before it was deleted while it existed.
func (b *Backend) endHandOver(lock string, place uint64, pairs []*api.KVPair) {
	f := b.followerOf(lock)
	if f == nil {
		return
	}
	defer f.mu.Unlock()
	if f.giving != nil {
		close(f.giving)
		f.giving = nil
	}
	if pairs == nil {
		return
	}
	next := newQueue(f.prefix, pairs[len(pairs)-1:])
	if len(next.All) == 0 {
		return
	}
	if w := f.waiting(next.All[0]); w != nil {
		w.tell(nil)
	}
	f.passed = max(f.passed, place)
	f.heard, f.moved = f.heard.behind(f.passed), true
}

// recalls reports whether the known queue shows what the next of the waiters here waits for. If the
// lock is about to be handed over within this process, or just was, recalls waits for a moment
// first.
func (f *follower) recalls(ctx context.Context) bool {
	f.mu.Lock()
	giving := f.giving
	f.mu.Unlock()
	if giving != nil {
		retry.Until(hush, ctx.Done(), giving)
	}
	if _, ours := f.next(); ours {
		retry.Pause(ctx, hush)
	}
	known, _ := f.next()
	return known
}

// next reports whether the known queue moved and has a waiter of this process in it, behind other
// entries; and whether the entry before that one is of the same session.
func (f *follower) next() (bool, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.heard
	for i := 1; f.moved && i < len(q.All); i++ {
		if w := f.waiting(q.All[i]); w != nil {
			return true, q.All[i-1].uuid == w.uuid
		}
	}
	return false, false
}

// createdOf returns the place of the key, or 0 if it is not among the pairs.
func createdOf(pairs []*api.KVPair, key string) uint64 {
	for _, p := range pairs {
		if p.Key == key {
			return p.CreateIndex
		}
	}
	return 0
}
