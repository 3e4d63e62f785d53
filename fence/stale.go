package fence

import (
	"errors"
	"fmt"
)

// ErrStale means that the guard has seen a greater token: the lock has since been granted to
// another client. Nothing was written. It is final for that lease; acquire the lock again.
var ErrStale = errors.New("the fencing token is stale")

// StaleError names the refused token and the newer one. It is ErrStale.
type StaleError struct {
	Resource string
	Token    Token // that was presented
	Newest   Token // that the guard has seen; 0: unknown
}

// Error names the resource, the token and the newest token that was seen.
func (e *StaleError) Error() string {
	if e.Newest == 0 {
		return fmt.Sprintf("%s: token %d of %q", ErrStale, e.Token, e.Resource)
	}
	return fmt.Sprintf("%s: token %d of %q, and %d was seen before", ErrStale, e.Token, e.Resource, e.Newest)
}

// Unwrap returns ErrStale.
func (*StaleError) Unwrap() error { return ErrStale }

// ErrEpoch means that the token does not compare with those that the guard accepts: it is of
// another epoch, or of another lock store. Nothing was written. It is not ErrStale: acquiring the
// lock again does not help. An operator has to give all parties the same lock store and the same
// epoch.
var ErrEpoch = errors.New("the fencing token is of another lock store or epoch")

// EpochError names the refused stamp and the stamp that refused it. It is ErrEpoch.
type EpochError struct {
	Resource string
	// Given is the stamp that was presented.
	Given Stamp
	// Want is the newest stamp of the resource. If the guard did not compare the two, it is the
	// epoch of the guard, with token 0.
	Want Stamp
}

// Error names the resource and both stamps, and says what the operator can do.
func (e *EpochError) Error() string {
	text := fmt.Sprintf("%s: token %d of %q is of epoch %d", ErrEpoch, e.Given.Token, e.Resource, e.Given.Epoch)
	switch {
	case e.Given.Epoch < e.Want.Epoch:
		return text + fmt.Sprintf(", and epoch %d is in force: move this client to the lock store of that epoch", e.Want.Epoch)
	case e.Given.Epoch > e.Want.Epoch:
		return text + fmt.Sprintf(", and the guard is of epoch %d: raise the epoch of the guard first", e.Want.Epoch)
	default:
		return text + fmt.Sprintf(", as is the newest token %d, which another lock store has issued: if the locks have moved, raise the epoch", e.Want.Token)
	}
}

// Unwrap returns ErrEpoch.
func (*EpochError) Unwrap() error { return ErrEpoch }

// Refusal returns the error of a guard that has found the presented stamp to be less than the
// newest one of the resource: *EpochError if the two do not compare, and *StaleError if they do.
//
// Within one epoch a token does not identify its store. One case can be recognised all the same.
// The tokens of Redis, Redlock, PostgreSQL, MySQL and SQLite are readings of a clock in
// microseconds, or counters that began at such a reading. So no token of theirs is less than half
// of another, and a token that is less than half of a newest one in that range is of another store.
// In all other cases the error is *StaleError: no distance between two revisions proves that they
// are of two stores.
func Refusal(resource string, given, newest Stamp) error {
	if given.Epoch != newest.Epoch || isClock(newest.Token) && given.Token < newest.Token/2 {
		return &EpochError{Resource: resource, Given: given, Want: newest}
	}
	return &StaleError{Resource: resource, Token: given.Token, Newest: newest.Token}
}

// isClock reports whether t is a reading of a clock in microseconds of Unix time, between the
// years 2001 and 2286.
func isClock(t Token) bool {
	const from, to = 1_000_000_000_000_000, 10_000_000_000_000_000
	return t >= from && t < to
}

// ErrFull means that the guard remembers as many resources as it may, and this is another one.
// Nothing was written.
var ErrFull = errors.New("the guard remembers as many resources as it may")

// FullError names the resource and the bound. It is ErrFull.
type FullError struct {
	Resource string
	Max      int
}

// Error names the resource and the bound.
func (e *FullError) Error() string {
	return fmt.Sprintf("%s: %d; %q is not among them: raise Config.MaxResources, or forget resources that no late write can reach", ErrFull, e.Max, e.Resource)
}

// Unwrap returns ErrFull.
func (*FullError) Unwrap() error { return ErrFull }

// ErrJump means that the token exceeds what its lock store can have issued by now. Nothing was
// written or remembered. The client that presented it is wrong or hostile: if remembered, the token
// would shut out the rightful holder.
var ErrJump = errors.New("the fencing token is greater than the lock store can have issued")

// JumpError names the refused token and the bound. It is ErrJump.
type JumpError struct {
	Resource string
	Token    Token
	Max      Token
}

// Error names the resource, the token and the bound.
func (e *JumpError) Error() string {
	return fmt.Sprintf("%s: token %d of %q, and the bound is %d", ErrJump, e.Token, e.Resource, e.Max)
}

// Unwrap returns ErrJump.
func (*JumpError) Unwrap() error { return ErrJump }
