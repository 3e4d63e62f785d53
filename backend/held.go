package backend

// MaxHeldHolders is the most holders that a [HeldError] names.
const MaxHeldHolders = 16

// NewHeldError makes the refusal of a lock: the one place that bounds what a refusal
// carries, so that refusing a lock costs the same whether one lease is out or thousands
// are. It keeps the first MaxHeldHolders of holders, which it does not change. count is
// how many leases are out; a backend that does not know it passes 0, and the number of
// holders given counts instead. A backend reads and passes no more than MaxHeldHolders
// holders where its store lets it.
func NewHeldError(name string, holders []Holder, count, ahead int) *HeldError {
	count = max(count, len(holders))
	return &HeldError{Name: name, Holders: FirstHolders(holders), Count: count, Ahead: ahead}
}

// FirstHolders returns the first MaxHeldHolders of those who hold a lock, or all of them
// where they are fewer: the holders that a [HeldError] names. holders is in whatever form
// a backend keeps them.
func FirstHolders[T any](holders []T) []T {
	n := min(len(holders), MaxHeldHolders)
	return holders[:n:n]
}
