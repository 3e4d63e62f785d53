package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/fence"
)

const (
	prefix = "reserva:" // of the names of the locks
	// settleTime is how long Reserve waits for another call of the same broker to end.
	settleTime = 5 * time.Second
	// maxProvisional is the longest that an unconfirmed reservation stands.
	maxProvisional = 30 * time.Second
	pauseTime      = 50 * time.Millisecond
)

// Reservation is a property that a broker has to itself.
type Reservation struct {
	Property string `json:"idImovel"`
	Broker   string `json:"idUsuario"`
	// Number grows from one reservation of a property to the next: it is the fencing token. A
	// renewal keeps it.
	Number fence.Token `json:"numero"`
	// Since is when it began, where that is known.
	Since time.Time `json:"desde,omitzero"`
	// Until is when it expires unless it is renewed.
	Until time.Time `json:"ate"`
}

// TakenError says that another broker has the property.
type TakenError struct{ Reservation }

// Error names the broker and the end.
func (e *TakenError) Error() string {
	return fmt.Sprintf("%q is reserved by %q until %s", e.Property, e.Broker, e.Until.Format(time.RFC3339))
}

// UnsettledError says that an earlier call of the same broker has not ended: it was cut short,
// or it is releasing the reservation. It ends when Left has passed, at the latest.
type UnsettledError struct{ Left time.Duration }

// Error says how long that takes.
func (e *UnsettledError) Error() string {
	return fmt.Sprintf("an earlier request of this broker is being settled, for %s at most", e.Left.Round(time.Second))
}

var (
	// ErrNotReserved: no broker has the property.
	ErrNotReserved = errors.New("not reserved")
	// ErrNumber: the broker has the property, by another reservation than the one that was meant.
	ErrNumber = errors.New("reserved again since, under another number")
)

// Book keeps the reservations. It has no state of its own: a reservation is a lease that no
// process renews, with the broker as its owner, so that every instance of the service can renew
// and release it, and a restart loses nothing. Its methods are safe for concurrent use.
//
// Operations of two steps are safe because the second step names the lease that the first has
// seen: if the reservation expires in between, and another broker has the property by then, the
// store answers that this lease is lost, and changes nothing.
//
// An acquisition whose answer is lost is released in the background. No call may renew such a
// lease in the meantime: the broker would be told "yours", and have nothing a second later. So
// a lease is short at first, and gets its full time when it is known to have been granted; and
// it is made short again before it is released. A lease that has no more time left than that is
// left alone, and soon gone.
type Book struct {
	locks       *holdfast.Client
	ttl         time.Duration
	provisional time.Duration // the short time
	confirmed   time.Duration // a lease with more time left than that is confirmed: the store may round up
}

// NewBook makes a book whose reservations last for ttl.
//
// Errors: holdfast.ErrUnsupported where the backend has no leases that outlive the process
// that took them; *holdfast.InvalidError where ttl is out of the backend's bounds.
func NewBook(locks *holdfast.Client, ttl time.Duration) (*Book, error) {
	can := locks.Capabilities()
	if !can.Timed {
		return nil, fmt.Errorf("reservations on %s, whose leases end with their process: %w", can.Name, holdfast.ErrUnsupported)
	}
	if err := can.ValidateTTL(ttl); err != nil {
		return nil, err
	}
	if least := 4 * max(can.MinTTL, can.ExpiryLag); ttl < least {
		return nil, &holdfast.InvalidError{Field: "ttl", Value: ttl.String(), Bound: least.String() + " or more for reservations on " + can.Name}
	}
	short := min(ttl/4, maxProvisional)
	return &Book{locks: locks, ttl: ttl, provisional: short, confirmed: short + can.ExpiryLag}, nil
}

// Reserve gives the property to the broker, or renews the reservation that the broker has, and
// reports which of the two it did.
//
// Errors: *TakenError; *UnsettledError; those of Client.TryAcquire.
func (b *Book) Reserve(ctx context.Context, property, broker string) (Reservation, bool, error) {
	name, begun := prefix+property, time.Now()
	for {
		lock, err := b.locks.TryAcquire(ctx, name, holdfast.Owner(broker), holdfast.NoRenew(), holdfast.TTL(b.provisional))
		if err == nil {
			asked := time.Now()
			if err = lock.Extend(ctx, b.ttl); err == nil {
				return leave(lock, broker, asked.Add(b.ttl)), false, nil
			}
			_, _ = lock.Detach() // it lasts for the short time or the full time, and the broker may ask again
			return Reservation{}, false, err
		}
		held, ok := errors.AsType[*holdfast.HeldError](err)
		if !ok {
			return Reservation{}, false, err
		}
		holder, ok := first(held.Holders)
		switch {
		case !ok: // it expired between the refusal and the answer
		case holder.Owner != broker:
			return Reservation{}, false, &TakenError{told(name, holder)}
		case holder.Left > b.confirmed:
			asked := time.Now()
			lock, err := b.resume(ctx, name, holder, b.ttl)
			if err == nil {
				return leave(lock, broker, asked.Add(b.ttl)), true, nil
			}
			if !errors.Is(err, holdfast.ErrLost) {
				return Reservation{}, false, err
			}
		case time.Since(begun) > settleTime:
			return Reservation{}, false, &UnsettledError{Left: holder.Left}
		}
		if err := pause(ctx); err != nil {
			return Reservation{}, false, err
		}
	}
}

// resume takes the lease that was seen into this process, and sets its end to ttl from now.
func (b *Book) resume(ctx context.Context, name string, seen holdfast.Holder, ttl time.Duration) (*holdfast.Lock, error) {
	return b.locks.Resume(ctx, holdfast.Lease{Name: name, ID: seen.Lease}, holdfast.NoRenew(), holdfast.TTL(ttl))
}

// leave detaches from a lease, which stays on the backend until its end. The lock's own deadline is earlier than that,
// by the drift of clocks, so List would report another end.
func leave(lock *holdfast.Lock, broker string, until time.Time) Reservation {
	r := Reservation{
		Property: strings.TrimPrefix(lock.Name(), prefix), Broker: broker, Number: lock.Token(),
		Until: until.UTC().Round(time.Millisecond),
	}
	_, _ = lock.Detach() // an error means that it has just expired
	return r
}

// Release releases the property. number says which reservation is meant; 0 is any that the
// broker has.
//
// Errors: ErrNotReserved; *TakenError; ErrNumber; those of Client.Inspect, after which the
// reservation stands as before, or is gone soon.
func (b *Book) Release(ctx context.Context, property, broker string, number fence.Token) error {
	name := prefix + property
	for {
		info, err := b.locks.Inspect(ctx, name)
		if err != nil {
			return err
		}
		holder, ok := first(info.Holders)
		switch {
		case !ok:
			return ErrNotReserved
		case holder.Owner != broker:
			return &TakenError{told(name, holder)}
		case number != 0 && holder.Token != number:
			return ErrNumber
		}
		lock, err := b.resume(ctx, name, holder, b.provisional)
		if err == nil {
			err = lock.Release(ctx)
		}
		if !errors.Is(err, holdfast.ErrLost) {
			return err
		}
		if err := pause(ctx); err != nil { // it expired in between: read again who has it
			return err
		}
	}
}

// List returns a page of the reservations, in the order of the properties, and the property
// after which the next page begins; that is empty on the last one.
//
// Errors: those of Client.List.
func (b *Book) List(ctx context.Context, after string, limit int) ([]Reservation, string, error) {
	o := holdfast.ListOptions{Prefix: prefix, Limit: limit}
	if after != "" {
		o.After = prefix + after
	}
	page, err := b.locks.List(ctx, o)
	if err != nil {
		return nil, "", err
	}
	list := make([]Reservation, 0, len(page.Locks))
	for _, lock := range page.Locks {
		if holder, ok := first(lock.Holders); ok {
			list = append(list, told(lock.Name, holder))
		}
	}
	return list, strings.TrimPrefix(page.Next, prefix), nil
}

func first(holders []holdfast.Holder) (holdfast.Holder, bool) {
	if len(holders) == 0 {
		return holdfast.Holder{}, false
	}
	return holders[0], true
}

// told converts a reservation from the form in which the store reports it.
func told(name string, h holdfast.Holder) Reservation {
	return Reservation{
		Property: strings.TrimPrefix(name, prefix), Broker: h.Owner, Number: h.Token,
		Since: h.Since.UTC(), Until: time.Now().Add(h.Left).UTC().Round(time.Millisecond),
	}
}

func pause(ctx context.Context) error {
	t := time.NewTimer(pauseTime)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
