package fence

import (
	"cmp"
	"strconv"
	"strings"
	"time"
)

// Stamp is a token with the epoch of the lock store that issued it. Every stamp of a greater epoch
// is greater than every stamp of a smaller one, whatever their tokens. Epoch 0 is the epoch of a
// store before any move.
type Stamp struct {
	Epoch uint32
	Token Token
}

// Compare returns -1, 0 or 1: stamps are ordered by their epochs, and then by their tokens.
func (s Stamp) Compare(t Stamp) int {
	return cmp.Or(cmp.Compare(s.Epoch, t.Epoch), cmp.Compare(s.Token, t.Token))
}

// String returns the text form: EPOCH:TOKEN in decimal digits, and the token alone for epoch 0, so
// that programs without epochs still parse it. Such a program cannot mistake a token of a later
// epoch for one of its own: fence.Parse refuses the colon.
func (s Stamp) String() string {
	if s.Epoch == 0 {
		return s.Token.String()
	}
	return strconv.FormatUint(uint64(s.Epoch), 10) + ":" + s.Token.String()
}

// ParseStamp parses a stamp as String writes it, and nothing else: each stamp has one text.
//
// Errors: *InvalidError.
func ParseStamp(text string) (Stamp, error) {
	before, after, found := strings.Cut(text, ":")
	if !found {
		t, err := Parse(text)
		return Stamp{Token: t}, err
	}
	epoch, err := strconv.ParseUint(before, 10, 32)
	if err != nil || epoch == 0 || before[0] == '+' || before[0] == '0' {
		const most = 16
		return Stamp{}, &InvalidError{Field: "epoch", Value: strconv.QuoteToASCII(before[:min(len(before), most)]), Bound: "1 to 4294967295, in digits; epoch 0 is not written"}
	}
	t, err := Parse(after)
	if err != nil {
		return Stamp{}, err
	}
	return Stamp{Epoch: uint32(epoch), Token: t}, nil
}

// ValidateStamp checks a stamp that was presented to a guard of the given epoch.
//
// Errors: *InvalidError; *EpochError if the stamp is of another epoch, even a greater one:
// otherwise any client could declare the newest epoch and shut out all others.
func ValidateStamp(resource string, s Stamp, epoch uint32) error {
	if err := Validate(resource, s.Token); err != nil {
		return err
	}
	if s.Epoch != epoch {
		return &EpochError{Resource: resource, Given: s, Want: Stamp{Epoch: epoch}}
	}
	return nil
}

// Ceiling returns the greatest token that a lock store can plausibly have issued at the given time:
// the microseconds of Unix time one day later. The stores of this module issue counters that keep up
// with a clock in microseconds (Redis, Redlock, PostgreSQL, MySQL, SQLite), or began at one (a restored
// Holdfast server), and grow by less than one a microsecond, or revisions, which are
// smaller (etcd, ZooKeeper, Consul, Kubernetes). The extra day allows for a store whose clock is
// ahead of the caller's.
func Ceiling(now time.Time) Token {
	const day = 24 * time.Hour
	return Token(max(0, now.Add(day).UnixMicro()))
}
