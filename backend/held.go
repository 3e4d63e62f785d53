package backend

// MaxHeldHolders is the most holders that a [HeldError] names.
const MaxHeldHolders = 16

// NewHeldError returns the error for a lock that is held. It is the one place that bounds the size
// of such an error, so that a refusal costs the same whether one lease is held or thousands are. It
// keeps the first MaxHeldHolders of holders, and does not change holders. count is the number of
// held leases. A backend that does not know it passes 0, and the length of holders is used. Where
// its store allows it, a backend reads and passes no more than MaxHeldHolders holders.
func NewHeldError(name string, holders []Holder, count, ahead int) *HeldError {
	count = max(count, len(holders))
	return &HeldError{Name: name, Holders: FirstHolders(holders), Count: count, Ahead: ahead}
}

// FirstHolders returns the first MaxHeldHolders holders of a lock, or all if there are fewer: the
// holders that a [HeldError] names. T is whatever type the backend keeps them in.
func FirstHolders[T any](holders []T) []T {
	n := min(len(holders), MaxHeldHolders)
	return holders[:n:n]
}
