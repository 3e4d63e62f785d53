// Package fence holds the fencing token, the number that makes a late write
// harmless.
//
// A lock service cannot stop a process that pauses past its lease, nor a packet
// that is already on its way. What it can do is give every grant of a lock a
// number greater than the number of every grant before it. A resource that
// remembers the greatest number it has seen, and refuses a smaller one in the
// same atomic step as the write, is safe whatever its clients do.
//
// The package imports nothing, so that a resource can check tokens without
// depending on a lock.
package fence

// Token is the fencing token of a lease: greater than the token of every grant
// of the same lock before it. Zero is no token. Tokens of different locks do
// not compare. Every token is below 2^63, so that it fits a signed SQL bigint;
// JSON carries it as a number.
type Token uint64

// MaxToken is the greatest token that any backend gives: 2^63 - 1.
const MaxToken Token = 1<<63 - 1

// Valid reports whether t can be the token of a grant: not zero and not above
// [MaxToken].
func (t Token) Valid() bool { return t > 0 && t <= MaxToken }
