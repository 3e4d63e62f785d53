package holdfast

import (
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// AcquireOption changes one acquisition. Bounds are checked before anything is
// sent; a bad value is an *InvalidError from the call that it was given to.
type AcquireOption interface{ acquire(s *settings) error }

// ResumeOption changes how a lease is resumed.
type ResumeOption interface{ resume(s *settings) error }

// settings are what the options of one call add up to.
type settings struct {
	ttl       time.Duration // 0: the client's
	wait      time.Duration // negative: as long as the context lets it
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

type acquireFunc func(s *settings) error

func (f acquireFunc) acquire(s *settings) error { return f(s) }

type anyFunc func(s *settings) error

func (f anyFunc) acquire(s *settings) error { return f(s) }
func (f anyFunc) resume(s *settings) error  { return f(s) }

// Option is good for every call that takes options.
type Option interface {
	AcquireOption
	ResumeOption
}

// TTL is how long the lease lives on the backend without a renewal. Bounds: those
// of the backend. Default: Config.TTL. Another TTL than the client's makes it a
// timed lease, which is renewed on its own account.
func TTL(d time.Duration) Option {
	return anyFunc(func(s *settings) error {
		if d <= 0 {
			return invalid("ttl", d.String(), "above 0")
		}
		s.ttl = d
		return nil
	})
}

// Wait bounds how long to wait in line; when it is over the error is ErrHeld.
// Zero does not wait. Default for Acquire: as long as its context lets it.
func Wait(d time.Duration) AcquireOption {
	return acquireFunc(func(s *settings) error {
		if d < 0 {
			return invalid("wait", d.String(), "0 or more")
		}
		s.wait = d
		return nil
	})
}

// Shared takes the lock together with other shared holders: as a reader, or, with
// Limit, as one of at most n.
func Shared() AcquireOption {
	return acquireFunc(func(s *settings) error { s.shared = true; return nil })
}

// Limit makes the lock a semaphore of n permits, 1 to 1,048,576, of which the
// lease takes one, or as many as Permits says. All who hold or wait for permits of
// one lock must give the same limit; otherwise *LimitError. Limit(1) is a mutex, also
// with Shared.
func Limit(n int) AcquireOption {
	return acquireFunc(func(s *settings) error {
		if n < 1 || n > backend.MaxLimit {
			return invalid("limit", strconv.Itoa(n), fmt.Sprintf("1 to %d", backend.MaxLimit))
		}
		s.limit = n
		return nil
	})
}

// Permits is how many permits the lease takes, 1 to the limit. Default: 1.
func Permits(k int) AcquireOption {
	return acquireFunc(func(s *settings) error {
		if k < 1 {
			return invalid("permits", strconv.Itoa(k), "1 to the limit")
		}
		s.permits = k
		return nil
	})
}

// Owner says who asks, for people, and for re-entry with Reentrant. At most 256
// bytes. Default: Config.Owner.
func Owner(owner string) AcquireOption {
	return acquireFunc(func(s *settings) error { s.owner = owner; return nil })
}

// Note is free text for people. At most 1,024 bytes.
func Note(note string) AcquireOption {
	return acquireFunc(func(s *settings) error { s.note = note; return nil })
}

// AtLeast keeps the lock for d after the grant, also when it is released before
// that, and when its process dies: for schedules, where the work is shorter than
// the difference of the clocks that start it.
func AtLeast(d time.Duration) AcquireOption {
	return acquireFunc(func(s *settings) error {
		if d <= 0 {
			return invalid("at_least", d.String(), "above 0")
		}
		s.atLeast = d
		return nil
	})
}

// AtMost gives the lock up d after the grant, renewing or not; the cause is
// CauseAtMost.
func AtMost(d time.Duration) Option {
	return anyFunc(func(s *settings) error {
		if d <= 0 {
			return invalid("at_most", d.String(), "above 0")
		}
		s.atMost = d
		return nil
	})
}

// NoRenew takes a lease that falls by itself when its TTL is over: a reservation.
// It outlives the client, also its Close.
func NoRenew() Option {
	return anyFunc(func(s *settings) error { s.noRenew = true; return nil })
}

// Reentrant joins the exclusive lease that is out when that was taken with
// Reentrant by the same Owner, also in another process. Both have the same token,
// and the lock is free when both are released. Within one process re-entry needs
// no option: pass on the context of the lock.
func Reentrant() AcquireOption {
	return acquireFunc(func(s *settings) error { s.reentrant = true; return nil })
}

// WithLease uses a lease ID that the caller made (16 to 64 characters of A-Z a-z
// 0-9 _ -), so that the same acquisition can be asked for again, from another
// process too, without being granted twice. It needs NoRenew.
//
// A client that does not get the lock, or does not know whether it has, gives nothing
// back then: somebody may have asked again with the same ID, and hold by now what would
// be given back. So after any error but ErrInvalid and ErrUnsupported the lease may be
// out, or may be granted yet where it waits in line, until its TTL is over. To have done
// with it, ask again, and release it; or let the client be for this acquisition alone, and
// close it: the place in line goes with it.
func WithLease(id LeaseID) AcquireOption {
	return acquireFunc(func(s *settings) error { s.lease = id; return backend.ValidateLeaseID(id) })
}

func invalid(field, value, bound string) error {
	return &InvalidError{Field: field, Value: value, Bound: bound}
}

// settings applies the options of an acquisition and checks what only their
// combination can tell.
func (c *Client) settings(opts []AcquireOption) (settings, error) {
	s := settings{wait: -1, owner: c.cfg.Owner}
	for _, o := range opts {
		if err := o.acquire(&s); err != nil {
			return s, err
		}
	}
	switch {
	case s.permits > 1 && s.limit < s.permits:
		return s, invalid("permits", strconv.Itoa(s.permits), fmt.Sprintf("1 to the limit, %d", max(1, s.limit)))
	case s.lease != "" && !s.noRenew:
		return s, invalid("lease", strconv.Quote(string(s.lease)), "given only for a lease that is not renewed (NoRenew)")
	case s.atLeast > 0 && s.atMost > 0 && s.atMost < s.atLeast:
		return s, invalid("at_most", s.atMost.String(), "at_least or more, "+s.atLeast.String())
	}
	return s, nil
}

// request is what the settings ask of the backend, without the IDs.
func (c *Client) request(name string, s settings) backend.AcquireRequest {
	r := backend.AcquireRequest{
		Name: name, Owner: s.owner, Note: s.note, Reentrant: s.reentrant, Wait: s.wait != 0,
	}
	if s.limit > 1 || s.shared && s.limit != 1 { // one of at most one is alone
		r.Mode = backend.Shared
		r.Permits = 1
		if s.limit > 1 {
			r.Limit, r.Permits = s.limit, max(1, s.permits)
		}
	}
	ttl := s.ttl
	if ttl == 0 {
		ttl = c.cfg.TTL
	}
	if !c.caps.Sessions || s.noRenew || s.atLeast > 0 || ttl != c.cfg.TTL {
		r.Timed, r.TTL = true, max(ttl, s.atLeast)
	}
	return r
}
