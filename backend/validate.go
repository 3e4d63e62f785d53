package backend

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of what a request may carry.
const (
	MaxNameLen   = 512     // bytes of a lock's name
	MaxOwnerLen  = 256     // bytes of an owner
	MaxNoteLen   = 1024    // bytes of a note, and of the reason of a break
	MaxLimit     = 1 << 20 // permits of a lock
	MaxListLimit = 1000    // locks on one page
	MaxIDLen     = 64      // characters of the ID of a lease or a session
	minIDLen     = 16
)

// ValidateName checks the name of a lock: 1 to MaxNameLen bytes of valid UTF-8 without control
// characters, whose segments between slashes are not empty, "." or "..". The name is used as it is:
// nothing is folded, trimmed or repaired.
func ValidateName(name string) error {
	switch {
	case name == "":
		return invalid("name", quote(name), "1 to 512 bytes")
	case len(name) > MaxNameLen:
		return invalid("name", quote(name), fmt.Sprintf("1 to %d bytes, not %d", MaxNameLen, len(name)))
	}
	if err := validText("name", name, MaxNameLen); err != nil {
		return err
	}
	if strings.HasPrefix(name, "/") || strings.HasSuffix(name, "/") {
		return invalid("name", quote(name), "without a slash at its beginning and its end")
	}
	for seg := range strings.SplitSeq(name, "/") {
		if seg == "" || seg == "." || seg == ".." {
			return invalid("name", quote(name), `without empty, "." or ".." segments between slashes`)
		}
	}
	return nil
}

// ValidatePrefix checks the prefix of a list or a watch: empty, or the beginning of a name.
func ValidatePrefix(prefix string) error { return validText("prefix", prefix, MaxNameLen) }

// ValidateText checks free text: at most limit bytes of valid UTF-8 without control characters.
// field is the field name in the error.
func ValidateText(field, s string, limit int) error { return validText(field, s, limit) }

// ValidateLeaseID checks a lease ID: 16 to 64 characters of A-Z a-z 0-9 _ -.
func ValidateLeaseID(id LeaseID) error { return validID("lease", string(id)) }

// ValidateSessionID checks a session ID: 16 to 64 characters of A-Z a-z 0-9 _ -.
func ValidateSessionID(id SessionID) error { return validID("session", string(id)) }

// ValidateTTL checks a TTL against the bounds of the backend.
func (c Capabilities) ValidateTTL(ttl time.Duration) error {
	if ttl < c.MinTTL || ttl > c.MaxTTL {
		return invalid("ttl", brief(ttl), brief(c.MinTTL)+" to "+brief(c.MaxTTL))
	}
	return nil
}

// brief returns d without the units that are zero: "8760h".
func brief(d time.Duration) string {
	s := d.String()
	if rest, ok := strings.CutSuffix(s, "m0s"); ok {
		s = rest + "m"
	}
	if rest, ok := strings.CutSuffix(s, "h0m"); ok {
		s = rest + "h"
	}
	return s
}

// Validate checks the request against the bounds and against the backend's capabilities:
// *InvalidError or ErrUnsupported.
func (r SessionRequest) Validate(c Capabilities) error {
	if !c.Sessions {
		return fmt.Errorf("sessions: %w", ErrUnsupported)
	}
	if err := ValidateSessionID(r.ID); err != nil {
		return err
	}
	return c.ValidateTTL(r.TTL)
}

// Validate checks the request against the bounds and against the backend's capabilities:
// *InvalidError or ErrUnsupported.
func (r AcquireRequest) Validate(c Capabilities) error {
	if err := ValidateName(r.Name); err != nil {
		return err
	}
	if err := ValidateLeaseID(r.Lease); err != nil {
		return err
	}
	if err := ValidateText("owner", r.Owner, MaxOwnerLen); err != nil {
		return err
	}
	if err := ValidateText("note", r.Note, MaxNoteLen); err != nil {
		return err
	}
	if err := r.validateClaim(c); err != nil {
		return err
	}
	return r.validateLife(c)
}

func (r AcquireRequest) validateClaim(c Capabilities) error {
	switch r.Mode {
	case Exclusive:
		if r.Limit != 0 {
			return invalid("limit", strconv.Itoa(r.Limit), "0 for an exclusive lease, which takes the whole lock")
		}
		if r.Permits < 0 || r.Permits > 1 {
			return invalid("permits", strconv.Itoa(r.Permits), "1 for an exclusive lease, which takes the whole lock")
		}
	case Shared:
		if r.Limit < 0 || r.Limit > MaxLimit {
			return invalid("limit", strconv.Itoa(r.Limit), fmt.Sprintf("0 (none) to %d", MaxLimit))
		}
		if r.Limit == 0 && (r.Permits < 0 || r.Permits > 1) {
			return invalid("permits", strconv.Itoa(r.Permits), "1 where there is no limit")
		}
		if r.Limit > 0 && (r.Permits < 0 || r.Permits > r.Limit) {
			return invalid("permits", strconv.Itoa(r.Permits), fmt.Sprintf("1 to the limit, %d", r.Limit))
		}
		if r.Limit == 0 && !c.Shared {
			return fmt.Errorf("shared leases: %w", ErrUnsupported)
		}
		if r.Limit > 0 && !c.Permits {
			return fmt.Errorf("permits: %w", ErrUnsupported)
		}
	default:
		return invalid("mode", strconv.Itoa(int(r.Mode)), "exclusive or shared")
	}
	return nil
}

var errTimed = fmt.Errorf("timed leases: %w", ErrUnsupported)

func (r AcquireRequest) validateLife(c Capabilities) error {
	if r.Timed {
		if !c.Timed {
			return errTimed
		}
		if err := c.ValidateTTL(r.TTL); err != nil {
			return err
		}
	}
	if !c.Sessions {
		if !r.Timed {
			return fmt.Errorf("leases that live with a session: %w", ErrUnsupported)
		}
		if r.Session != "" {
			return fmt.Errorf("sessions: %w", ErrUnsupported)
		}
		return nil
	}
	if r.Session == "" {
		if r.Timed && !r.Wait {
			return nil
		}
		return invalid("session", `""`, "given, unless the lease is timed and does not wait")
	}
	return ValidateSessionID(r.Session)
}

// Validate checks the request against the bounds and against the backend's capabilities:
// *InvalidError or ErrUnsupported.
func (r RenewRequest) Validate(c Capabilities) error {
	if r.Session != "" {
		if !c.Sessions {
			return fmt.Errorf("sessions: %w", ErrUnsupported)
		}
		if err := ValidateSessionID(r.Session); err != nil {
			return err
		}
	}
	if c.MaxRenew > 0 && len(r.Leases) > c.MaxRenew {
		return invalid("leases", strconv.Itoa(len(r.Leases)), fmt.Sprintf("at most %d in one call", c.MaxRenew))
	}
	if len(r.Leases) > 0 && !c.Timed {
		return errTimed
	}
	for _, l := range r.Leases {
		if err := ValidateName(l.Name); err != nil {
			return err
		}
		if err := ValidateLeaseID(l.Lease); err != nil {
			return err
		}
		if l.TTL == 0 { // its own
			continue
		}
		if err := c.ValidateTTL(l.TTL); err != nil {
			return err
		}
	}
	return nil
}

// Validate checks the request against the bounds: *InvalidError.
func (r ReleaseRequest) Validate() error {
	if err := ValidateName(r.Name); err != nil {
		return err
	}
	if r.Session != "" {
		if err := ValidateSessionID(r.Session); err != nil {
			return err
		}
	}
	return ValidateLeaseID(r.Lease)
}

// Validate checks the request against the bounds: *InvalidError.
func (r ListRequest) Validate() error {
	if err := ValidatePrefix(r.Prefix); err != nil {
		return err
	}
	if err := ValidateText("after", r.After, MaxNameLen); err != nil {
		return err
	}
	if r.Limit < 0 || r.Limit > MaxListLimit {
		return invalid("limit", strconv.Itoa(r.Limit), fmt.Sprintf("1 to %d", MaxListLimit))
	}
	return nil
}

// Size returns how many locks the page has room for: Limit, or MaxListLimit if that is 0.
func (r ListRequest) Size() int { return cmp.Or(r.Limit, MaxListLimit) }

// Validate checks the request against the bounds: *InvalidError.
func (r BreakRequest) Validate() error {
	if err := ValidateName(r.Name); err != nil {
		return err
	}
	if r.Lease != "" {
		if err := ValidateLeaseID(r.Lease); err != nil {
			return err
		}
	}
	if err := ValidateText("reason", r.Reason, MaxNoteLen); err != nil {
		return err
	}
	return ValidateText("actor", r.Actor, MaxOwnerLen)
}

// Takes reports whether a holder loses the lock.
func (r BreakRequest) Takes(holder LeaseID) bool { return r.Lease == "" || r.Lease == holder }

func validText(field, s string, limit int) error {
	switch {
	case len(s) > limit:
		return invalid(field, quote(s), fmt.Sprintf("at most %d bytes, not %d", limit, len(s)))
	case isPlain(s):
		return nil
	case !utf8.ValidString(s):
		return invalid(field, quote(s), "valid UTF-8")
	case strings.ContainsFunc(s, unicode.IsControl):
		return invalid(field, quote(s), "without control characters")
	}
	return nil
}

// isPlain reports whether s consists of printable ASCII characters, as most texts do.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

func validID(field, id string) error {
	if len(id) >= minIDLen && len(id) <= MaxIDLen && isWord(id) {
		return nil
	}
	return invalid(field, quote(id), fmt.Sprintf("%d to %d characters of A-Z a-z 0-9 _ -", minIDLen, MaxIDLen))
}

// inWords has at each place the character of that number if IDs may have it, and another one otherwise. A
// look at it takes half as long as comparisons, and four IDs are checked for a pair of acquire and release.
const inWords = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" + "-" + "xx" + "0123456789" + "xxxxxxx" +
	"ABCDEFGHIJKLMNOPQRSTUVWXYZ" + "xxxx" + "_" + "x" + "abcdefghijklmnopqrstuvwxyz"

// isWord reports whether id consists only of the characters allowed in IDs.
func isWord(id string) bool {
	for i := range len(id) {
		if c := id[i]; int(c) >= len(inWords) || inWords[c] != c {
			return false
		}
	}
	return true
}

func invalid(field, value, bound string) error {
	return &InvalidError{Field: field, Value: value, Bound: bound}
}

// quote shortens a caller's value, so that an error carries at most one line of it.
func quote(s string) string {
	const most = 64
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.QuoteToGraphic(s)
}
