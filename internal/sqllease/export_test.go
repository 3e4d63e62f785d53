package sqllease

import "github.com/holdfast-io/holdfast/internal/waiters"

// Decode decodes a notification and returns the number of its entries.
func Decode(payload string) int {
	look, granted, _ := decodeNotification(payload)
	return len(look.Leases) + len(look.Sessions) + len(granted)
}

// Listeners returns the number of sessions whose losses are received here.
func (b *Leases) Listeners() int {
	_, n := b.calls.Len()
	return n
}

// InUse makes the periodic maintenance run from now on.
func (b *Leases) InUse() { waiters.Signal(b.toSweep) }

// Strange returns how many locks with a queue are remembered that other values may free.
func (b *Leases) Strange() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.strange)
}
