// Package fence provides the fencing token, the number that makes a late write harmless.
//
// A lock service cannot stop a process that pauses past its lease, nor a packet that is already on
// its way. But it can give every grant of a lock a number greater than the number of every earlier
// grant. A resource that remembers the greatest number it has seen, and refuses a smaller one in
// the same atomic step as the write, is safe whatever its clients do.
//
// [Guard] does that for data in one process. The packages below it have guards for data elsewhere:
// sqlfence, in the transaction that writes; redisfence, in the script that writes; httpfence, in
// front of an HTTP service.
//
// # Moving to another lock store
//
// Tokens of two stores do not compare: the first token of the new store may be smaller than
// the newest token of the old one, and then the guard refuses every write. [Stamp] is a token
// with the epoch of the store that issued it. Give the new store a greater epoch. A token of
// another epoch is [ErrEpoch], which no retry cures, and not [ErrStale], which a new
// acquisition cures.
//
// The package imports nothing but the standard library, so that a resource can check
// tokens without depending on a lock.
package fence

import (
	"fmt"
	"strconv"
)

// Token is the fencing token of a lease: greater than the token of every grant
// of the same lock before it. Zero is no token. Tokens of different locks do
// not compare. Every token is below 2^63, so that it fits a signed SQL bigint;
// JSON carries it as a number.
type Token uint64

// MaxToken is the greatest token that any backend issues: 2^63 - 1.
const MaxToken Token = 1<<63 - 1

// Valid reports whether t can be the token of a grant: not zero and not above
// [MaxToken].
func (t Token) Valid() bool { return t > 0 && t <= MaxToken }

// String returns the token in decimal digits.
func (t Token) String() string { return strconv.FormatUint(uint64(t), 10) }

// Parse parses a token as String writes it: decimal digits, and nothing else.
//
// Errors: *InvalidError.
func Parse(s string) (Token, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || n == 0 || s[0] == '+' || s[0] == '0' {
		const most = 32
		return 0, &InvalidError{Field: "token", Value: strconv.QuoteToASCII(s[:min(len(s), most)]), Bound: "1 to 9223372036854775807, in digits"}
	}
	return Token(n), nil
}

// InvalidError names an argument that a guard cannot use. Nothing was written.
type InvalidError struct {
	Field string
	Value string
	Bound string
}

// Error names the field, the value and the bound.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s %s: must be %s", e.Field, e.Value, e.Bound)
}

// MaxResourceLen is the longest name of a resource, in bytes: as for locks.
const MaxResourceLen = 512

// Validate checks the arguments of a guard.
//
// Errors: *InvalidError.
func Validate(resource string, t Token) error {
	if resource == "" || len(resource) > MaxResourceLen {
		return &InvalidError{Field: "resource", Value: strconv.Itoa(len(resource)) + " bytes", Bound: "1 to 512 bytes"}
	}
	if !t.Valid() {
		return &InvalidError{Field: "token", Value: t.String(), Bound: "1 to 9223372036854775807"}
	}
	return nil
}
