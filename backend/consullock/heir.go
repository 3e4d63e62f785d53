package consullock

import (
	"context"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
)

// A lock in demand goes from hand to hand within this process without a question. Who
// follows its line knows it as it was at an index. What came since is behind all that was
// there then, and of that some may be gone, and nothing else can be. So when the first is
// deleted, the second is the front of the line and out, if only it is still there: which
// the transaction that deletes the first finds out. The second is the heir.

// hush is for how long after such a hand-over nobody asks what became of somebody here:
// where a lock goes on from hand to hand there is nothing to ask for.
const hush = 10 * time.Millisecond

const (
	// enough is how many have to be in a line that was heard for others to join it without
	// seeing it. To see a line costs more, the longer it is; and a short one is soon at its
	// end.
	enough = 16
	// atOnce is how many who come to a lock at the same time see its line. The others wait for
	// what those have seen.
	atOnce = 4
)

// comes reports whether who wants the lock for itself, and waits for it, need not see the line
// that it joins: enough of that was heard, or others see it at this moment. The function is
// to be called when it has joined.
func (b *Backend) comes(lock string) (bool, func()) {
	f := b.followerOf(lock)
	blind := false
	if f != nil {
		blind = len(f.heard.all) > enough
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

// hear takes in what an acquire has seen of the line, if it is newer. mu is held.
func (f *follower) hear(seen *sight) {
	if seen.index > f.heard.index {
		f.take(seen)
		f.moved = true
	}
}

// known is the index of what was heard, and how many have come to wait.
func (f *follower) known() (uint64, uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.heard.index, f.came
}

// take takes in the line as it was seen, unless what was heard meanwhile is newer. Where it
// is older than what had been heard before it was asked for, the store was put back to an
// earlier time. mu is held.
func (f *follower) take(seen *sight) {
	switch {
	case seen.index < seen.since:
		f.passed = 0
	case seen.index < f.heard.index:
		return
	}
	f.heard = seen.behind(f.passed)
}

// followerOf gives the lock's follower, locked; nil: nobody here waits for it.
func (b *Backend) followerOf(lock string) *follower {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.lines[lock]
	if f != nil {
		f.mu.Lock()
	}
	return f
}

// heirTo gives the key of who is out when the key is deleted, where that is known and one
// of those who wait here; otherwise nothing. Readers are no heirs, because there may be more
// of them. Who got an heir has to say what became of that: see settle.
func (b *Backend) heirTo(lock, key string) string {
	f := b.followerOf(lock)
	if f == nil {
		return ""
	}
	defer f.mu.Unlock()
	l := f.heard.line
	if f.giving != nil || len(l.all) < 2 || l.all[0].key != key || l.Claims[1].Mode != backend.Exclusive || f.waiting(l.all[1]) == nil {
		return ""
	}
	f.giving = make(chan struct{})
	return l.all[1].key
}

// waiting gives who waits for the entry here and was not told; nil: nobody. mu is held.
func (f *follower) waiting(e entry) *waiter {
	for w := range f.waiters {
		if w.lease == e.lease && w.created == e.created && !w.told {
			return w
		}
	}
	return nil
}

// settle ends what heirTo began. The pairs are the answer to giving back, that of the heir
// last; nil: it is not known that the place before it is gone while it was there.
func (b *Backend) settle(lock string, place uint64, pairs []*api.KVPair) {
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
	heir := newLine(b.lockKey(lock), pairs[len(pairs)-1:])
	if len(heir.all) == 0 {
		return
	}
	if w := f.waiting(heir.all[0]); w != nil {
		w.tell(verdict{entry: heir.all[0]})
	}
	f.passed = max(f.passed, place)
	f.heard, f.moved = f.heard.behind(f.passed), true
}

// recalls reports whether what was heard tells what the next of those who wait here waits
// for. Where the lock is about to go from hand to hand, or just did, it takes its time.
func (f *follower) recalls(ctx context.Context) bool {
	f.mu.Lock()
	giving := f.giving
	f.mu.Unlock()
	if giving != nil {
		await(ctx, giving)
	}
	f.mu.Lock()
	known, ours := f.next()
	f.mu.Unlock()
	if known && ours {
		await(ctx, nil)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	known, _ = f.next()
	return known
}

// await waits for what happens, for a hush at most.
func await(ctx context.Context, happens <-chan struct{}) {
	timer := time.NewTimer(hush)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-happens:
	}
}

// next reports whether what was heard moved and somebody who waits here is in it, behind
// others; and whether who is before that one is of the same session. mu is held.
func (f *follower) next() (bool, bool) {
	l := f.heard.line
	for i := 1; f.moved && i < len(l.all); i++ {
		if w := f.waiting(l.all[i]); w != nil {
			return true, l.all[i-1].uuid == w.uuid
		}
	}
	return false, false
}

// createdOf gives the place of the key; 0: it is not among the pairs.
func createdOf(pairs []*api.KVPair, key string) uint64 {
	for _, p := range pairs {
		if p.Key == key {
			return p.CreateIndex
		}
	}
	return 0
}
