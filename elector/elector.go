package elector

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/fence"
)

// ErrRunning says that Run or Campaign was called while the elector is a candidate or leads.
var ErrRunning = errors.New("the elector is in the election already")

// Config configures an Elector. The zero value is good.
type Config struct {
	// Candidate is who stands, for people: at most 256 bytes. Default: the owner of
	// the client, "host:pid". Optional.
	Candidate string
	// Value is told to those who observe the election, such as the address at which
	// the leader is reached: at most 1,024 bytes. Optional.
	Value string
	// Rest is how long, about, Run stays out of the election after a term, so that a
	// function that returns at once does not turn in circles. Default: 1 s. Optional.
	Rest time.Duration
	// Events are hooks for logs, metrics and tests. Optional.
	Events Events
}

// Events are hooks of Run. Each is optional; they are called by Run, in order, and Run
// waits for them.
type Events struct {
	// Gained: the elector leads.
	Gained func(*Term)
	// Lost: the term ended without the leader's will; err is a *holdfast.LostError,
	// joined with what the function returned, if that is more than its context's error.
	Lost func(term *Term, err error)
	// Resigned: the leader gave the term up; err is set when the backend has not
	// confirmed that: then the term ends on the backend with its TTL at the latest.
	Resigned func(term *Term, err error)
}

const (
	defaultRest = time.Second
	// resignPatience bounds how long Run waits for a resignation to be confirmed. It
	// goes on in the background after that.
	resignPatience = 5 * time.Second
)

// Elector is a candidate of one election. Its methods may be called at once. It starts
// no goroutine of its own outside of its methods, and needs no Close.
type Elector struct {
	locks *holdfast.Client
	name  string
	cfg   Config

	mu       sync.Mutex
	standing bool  // Run, or Campaign, has not returned
	term     *Term // the newest; nil: none yet
}

// New makes a candidate of the election name. It sends nothing. All candidates of an
// election use the same backend and name; the name is that of the lock.
//
// Errors: *holdfast.InvalidError for a negative Rest. Name, Candidate and Value are
// checked by the first call that uses them.
func New(locks *holdfast.Client, name string, cfg Config) (*Elector, error) {
	if cfg.Rest < 0 {
		return nil, &holdfast.InvalidError{Field: "Config.Rest", Value: cfg.Rest.String(), Bound: "0s or more"}
	}
	if cfg.Rest == 0 {
		cfg.Rest = defaultRest
	}
	return &Elector{locks: locks, name: name, cfg: cfg}, nil
}

// Name of the election.
func (e *Elector) Name() string { return e.name }

// Campaign waits until the elector leads, or ctx ends. ctx ends the waiting only, not
// the term. Resign the term when it is over.
//
// Errors: those of holdfast.Client.Acquire; ErrRunning.
func (e *Elector) Campaign(ctx context.Context) (*Term, error) {
	if err := e.stand(); err != nil {
		return nil, err
	}
	defer e.sit()
	return e.campaign(ctx)
}

// stand is the beginning of Run and Campaign. A term that is not over is in the way.
func (e *Elector) stand() error {
	for {
		e.mu.Lock()
		newest := e.term
		e.mu.Unlock()
		over := newest == nil || newest.Err() != nil // which calls hooks: not with mu held
		e.mu.Lock()
		if e.standing || e.term == newest {
			defer e.mu.Unlock()
			if e.standing || !over {
				return ErrRunning
			}
			e.standing = true
			return nil
		}
		e.mu.Unlock() // a term began meanwhile
	}
}

// sit is their end.
func (e *Elector) sit() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.standing = false
}

func (e *Elector) campaign(ctx context.Context) (*Term, error) {
	var opts []holdfast.AcquireOption
	if e.cfg.Candidate != "" {
		opts = append(opts, holdfast.Owner(e.cfg.Candidate))
	}
	if e.cfg.Value != "" {
		opts = append(opts, holdfast.Note(e.cfg.Value))
	}
	lock, err := e.locks.Acquire(ctx, e.name, opts...)
	if err != nil {
		return nil, err
	}
	t := &Term{lock: lock, began: time.Now()}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.term = t
	return t, nil
}

// Term is the term that the elector leads; nil when it does not lead. It looks at the
// clock, and sends nothing.
func (e *Elector) Term() *Term {
	e.mu.Lock()
	t := e.term
	e.mu.Unlock()
	if t == nil || t.Err() != nil {
		return nil
	}
	return t
}

// Term is a time for which the elector leads. Its methods may be called at once.
type Term struct {
	lock  *holdfast.Lock
	began time.Time
}

// Context ends when the term does: before another can lead. context.Cause tells why: a
// *holdfast.LostError or holdfast.ErrReleased.
func (t *Term) Context() context.Context { return t.lock.Context() }

// Token is the number of the term: the fencing token, greater than that of every term
// before it. Give it to whatever the leader writes to.
func (t *Term) Token() fence.Token { return t.lock.Token() }

// Began is when the elector learnt that it leads. The time has a monotonic reading.
func (t *Term) Began() time.Time { return t.began }

// Err is nil while the term lasts, then holdfast.ErrReleased or a *holdfast.LostError.
// It looks at the clock, and sends nothing.
func (t *Term) Err() error { return t.lock.Err() }

// Resign ends the term: its context ends first, and then the next in line leads.
//
// Errors: those of holdfast.Lock.Release: holdfast.ErrLost when it was over before.
func (t *Term) Resign(ctx context.Context) error { return t.lock.Release(ctx) }
