package holdfast

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// Option changes one call. Bounds are checked before anything is sent. A bad value, or an option that the call does not
// take, is an *InvalidError. Each call that takes fewer than all of them says which.
type Option func(s *settings) error

// verb is a call that takes options.
type verb uint8

const (
	acquiring verb = 1 << iota
	trying
	resuming
	breaking

	acquisition = acquiring | trying
)

// settings is the combined effect of the options of one call.
type settings struct {
	verb      verb
	ttl       time.Duration // 0: the client's TTL
	wait      time.Duration // negative: until the context ends
	shared    bool
	limit     int // 0: not given
	permits   int // 0: not given
	owner     string
	note      string
	atLeast   time.Duration
	atMost    time.Duration
	noRenew   bool
	reentrant bool
	lease     LeaseID
}

// takes returns an error if the call is none of these.
func (s *settings) takes(option string, calls verb) error {
	if s.verb&calls == 0 {
		return invalid("option", option, "given to "+calls.String()+", and not to this call")
	}
	return nil
}

// String names the calls.
func (v verb) String() string {
	var names []string
	for i, name := range []string{"Acquire or Do", "TryAcquire", "Resume", "Break"} {
		if v&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// TTL sets how long the lease lives on the backend without a renewal. The bounds are those of the
// backend. Default: Config.TTL. A TTL that differs from the client's makes the lease a timed lease,
// which needs renewals of its own.
func TTL(d time.Duration) Option {
	return func(s *settings) error {
		if d <= 0 {
			return invalid("ttl", d.String(), "above 0")
		}
		s.ttl = d
		return s.takes("TTL", acquisition|resuming)
	}
}

// Wait bounds the time spent in the queue, and waiting for a backend that is unavailable. After d the
// error is ErrHeld, or ErrUnavailable. Zero does not wait for other holders; a backend that is unavailable is retried for
// Config.Timeout, as by TryAcquire. By default Acquire waits until its context ends.
// TryAcquire does not take it.
func Wait(d time.Duration) Option {
	return func(s *settings) error {
		if d < 0 {
			return invalid("wait", d.String(), "0 or more")
		}
		s.wait = d
		return s.takes("Wait", acquiring)
	}
}

// Shared acquires the lock together with other shared holders: as a reader, or, with Limit, as one
// of at most n.
func Shared() Option {
	return func(s *settings) error { s.shared = true; return s.takes("Shared", acquisition) }
}

// Limit makes the lock a semaphore of n permits, 1 to 1,048,576. The lease takes one permit, or as
// many as Permits says. All holders and waiters of one lock must use the same limit; another limit
// is a *LimitError. Limit(1) is a mutex, also with Shared.
func Limit(n int) Option {
	return func(s *settings) error {
		if n < 1 || n > backend.MaxLimit {
			return invalid("limit", strconv.Itoa(n), fmt.Sprintf("1 to %d", backend.MaxLimit))
		}
		s.limit = n
		return s.takes("Limit", acquisition)
	}
}

// Permits sets how many permits the lease takes, from 1 to the limit. Default: 1.
func Permits(k int) Option {
	return func(s *settings) error {
		if k < 1 {
			return invalid("permits", strconv.Itoa(k), "1 to the limit")
		}
		s.permits = k
		return s.takes("Permits", acquisition)
	}
}

// Owner names the caller, for people. At most 256 bytes. Default:
// Config.Owner.
func Owner(owner string) Option {
	return func(s *settings) error { s.owner = owner; return s.takes("Owner", acquisition) }
}

// Note attaches free text for people. At most 1,024 bytes.
func Note(note string) Option {
	return func(s *settings) error { s.note = note; return s.takes("Note", acquisition) }
}

// AtLeast keeps the lock for d after the grant, even if it is released before that or its process
// dies. It is meant for schedules, where the work may take less time than the clocks that start it
// differ by.
func AtLeast(d time.Duration) Option {
	return func(s *settings) error {
		if d <= 0 {
			return invalid("at_least", d.String(), "above 0")
		}
		s.atLeast = d
		return s.takes("AtLeast", acquisition)
	}
}

// AtMost ends the lock d after the grant, even if it is being renewed. The cause is CauseAtMost.
func AtMost(d time.Duration) Option {
	return func(s *settings) error {
		if d <= 0 {
			return invalid("at_most", d.String(), "above 0")
		}
		s.atMost = d
		return s.takes("AtMost", acquisition|resuming)
	}
}

// NoRenew acquires a lease that ends by itself when its TTL has elapsed: a reservation. It outlives
// the client, also its Close.
func NoRenew() Option {
	return func(s *settings) error { s.noRenew = true; return s.takes("NoRenew", acquisition|resuming) }
}

// Reentrant acquires once more the lease that is held: ctx is the context of that lock, or a child of it. The call
// returns another Lock of the lease, with the same token, and sends nothing. The lease is released with the last of them.
// An exclusive lease includes everything, a shared one what is shared and needs no more permits.
//
// The error is ErrDeadlock where the lease does not include what is asked for, ErrReleased or ErrLost where it has ended,
// and ErrInvalid where ctx belongs to no lock of that name.
//
// Goroutines that acquire with the context of one lock, and say Reentrant, are inside it together: it does not exclude
// them from each other.
func Reentrant() Option {
	return func(s *settings) error { s.reentrant = true; return s.takes("Reentrant", acquisition) }
}

// WithLease uses a lease ID made by the caller (16 to 64 characters of A-Z a-z 0-9 _ -). The same
// acquisition can then be retried, also from another process, without being granted twice. It needs
// NoRenew.
//
// A client that does not get the lock, or does not know whether it did, releases nothing: another
// client may have retried with the same ID, and a release would end the lease that it now holds. So
// after any error but ErrInvalid and ErrUnsupported, the lease may be held until its TTL has
// elapsed, or may still be granted from its place in the queue. To clean up, acquire again with the
// same ID and release the lock. Or use a client for this acquisition alone and close it: its place
// in the queue is then removed.
func WithLease(id LeaseID) Option {
	return func(s *settings) error {
		if err := backend.ValidateLeaseID(id); err != nil {
			return err
		}
		s.lease = id
		return s.takes("WithLease", acquisition|breaking)
	}
}

func invalid(field, value, bound string) error {
	return &InvalidError{Field: field, Value: value, Bound: bound}
}

// checkContext returns an error where there is no context: nothing could end the call.
func checkContext(ctx context.Context) error {
	if ctx == nil {
		return invalid("ctx", "nil", "a context")
	}
	return nil
}

// settings returns the settings of an acquisition with these options.
func (c *Client) settings(ctx context.Context, call verb, opts []Option) (settings, error) {
	s := settings{verb: call, wait: -1, owner: c.cfg.Owner}
	if err := checkContext(ctx); err != nil {
		return s, err
	}
	if len(opts) == 0 {
		return s, nil
	}
	return with(s, opts)
}

// with applies the options of an acquisition and checks those that are valid only in combination. It is
// apart from settings because what an option changes is on the heap.
func with(s settings, opts []Option) (settings, error) {
	if err := s.apply(opts); err != nil {
		return s, err
	}
	switch {
	case s.permits > 1 && s.limit == 0:
		return s, invalid("permits", strconv.Itoa(s.permits), "given with a Limit")
	case s.permits > 1 && s.limit < s.permits:
		return s, invalid("permits", strconv.Itoa(s.permits), fmt.Sprintf("1 to the limit, %d", s.limit))
	case s.lease != "" && !s.noRenew:
		return s, invalid("lease", strconv.Quote(string(s.lease)), "given only for a lease that is not renewed (NoRenew)")
	case s.atLeast > 0 && s.atMost > 0 && s.atMost < s.atLeast:
		return s, invalid("at_most", s.atMost.String(), "at_least or more, "+s.atLeast.String())
	}
	return s, nil
}

func (s *settings) apply(opts []Option) error {
	for _, o := range opts {
		if o == nil {
			return invalid("option", "nil", "an option")
		}
		if err := o(s); err != nil {
			return err
		}
	}
	return nil
}
