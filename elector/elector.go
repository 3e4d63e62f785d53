package elector

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/fence"
)

// ErrRunning means that Run or Campaign was called while the elector is a candidate or leads.
var ErrRunning = errors.New("the elector is in the election already")

// Config configures an Elector. The zero value is ready to use.
type Config struct {
	// Candidate names the candidate, for people: at most 256 bytes. Default: the owner of the
	// client, "host:pid". Optional.
	Candidate string
	// Value is reported to observers of the election, such as the address of the leader: at most
	// 1,024 bytes. Optional.
	Value string
	// Rest is approximately how long Run stays out of the election after a term, so that a lead
	// function that returns immediately does not loop without a pause. Default: 1 s. Optional.
	Rest time.Duration
	// Hooks are called by Run, for logs, metrics and tests. Optional.
	Hooks Hooks
}

// Hooks are called by Run, in order. Each is optional. Run waits for them. Their context has the values
// of the context of Run, but not its end.
type Hooks struct {
	// Gained: the elector leads.
	Gained func(context.Context, *Term)
	// Lost: the term ended without the leader's will. err is a *holdfast.LostError, joined with the
	// error of the function if that is more than its context's error.
	Lost func(ctx context.Context, term *Term, err error)
	// Resigned: the leader resigned. err is set when the backend has not confirmed that; then
	// the term ends on the backend with its TTL at the latest.
	Resigned func(ctx context.Context, term *Term, err error)
}

const (
	defaultRest = time.Second
	// resignPatience bounds how long Run waits for a resignation to be confirmed. After that the
	// resignation continues in the background.
	resignPatience = 5 * time.Second
)

// Elector is a candidate of one election. Its methods are safe for concurrent use. It starts no
// goroutine that outlives its methods, and needs no Close.
type Elector struct {
	locks *holdfast.Client
	name  string
	cfg   Config

	mu       sync.Mutex
	standing bool  // Run, or Campaign, has not returned
	term     *Term // the newest; nil: none so far
}

// New returns a candidate of the election name. It sends nothing. All candidates of an election use
// the same backend and name; the name is that of the lock.
//
// Errors: *holdfast.InvalidError without a client, or for a negative Rest. Name, Candidate and Value are checked by the
// first call that uses them.
func New(locks *holdfast.Client, name string, cfg Config) (*Elector, error) {
	if locks == nil {
		return nil, &holdfast.InvalidError{Field: "locks", Value: "nil", Bound: "a client"}
	}
	if cfg.Rest < 0 {
		return nil, &holdfast.InvalidError{Field: "Config.Rest", Value: cfg.Rest.String(), Bound: "0s or more"}
	}
	if cfg.Rest == 0 {
		cfg.Rest = defaultRest
	}
	return &Elector{locks: locks, name: name, cfg: cfg}, nil
}

// Name returns the name of the election.
func (e *Elector) Name() string { return e.name }

// Campaign waits until the elector leads or ctx ends. ctx ends only the waiting, not the term. Call
// Resign to end the term.
//
// Errors: those of holdfast.Client.Acquire; ErrRunning.
func (e *Elector) Campaign(ctx context.Context) (*Term, error) {
	if err := e.stand(); err != nil {
		return nil, err
	}
	defer e.sit()
	return e.campaign(ctx)
}

// stand begins Run or Campaign. It fails while a term lasts.
func (e *Elector) stand() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.standing || e.term != nil && e.term.Err() == nil {
		return ErrRunning
	}
	e.standing = true
	return nil
}

// sit ends Run or Campaign.
func (e *Elector) sit() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.standing = false
}

func (e *Elector) campaign(ctx context.Context) (*Term, error) {
	var opts []holdfast.Option
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

// Term returns the term that the elector leads, or nil if it does not lead. It reads the clock and
// sends nothing.
func (e *Elector) Term() *Term {
	e.mu.Lock()
	t := e.term
	e.mu.Unlock()
	if t == nil || t.Err() != nil {
		return nil
	}
	return t
}

// Term is a period in which the elector leads. Its methods are safe for concurrent use.
type Term struct {
	lock  *holdfast.Lock
	began time.Time
}

// Context returns a context that ends when the term does: before another can lead. Its
// context.Cause is a *holdfast.LostError or holdfast.ErrReleased.
func (t *Term) Context() context.Context { return t.lock.Context() }

// Token returns the number of the term: the fencing token, greater than that of every earlier term.
// Pass it to every resource that the leader writes to.
func (t *Term) Token() fence.Token { return t.lock.Token() }

// Lock returns the lock that the term is: its deadline, and each renewal of it, are for what must end before the
// term can.
func (t *Term) Lock() *holdfast.Lock { return t.lock }

// Began returns when the elector learnt that it leads. The time has a monotonic reading.
func (t *Term) Began() time.Time { return t.began }

// Err returns nil while the term lasts, then holdfast.ErrReleased or a *holdfast.LostError. It
// reads the clock and sends nothing.
func (t *Term) Err() error { return t.lock.Err() }

// Resign ends the term: its context ends first, and then the next in the queue leads.
//
// Errors: those of holdfast.Lock.Release; holdfast.ErrLost if the term had ended before.
func (t *Term) Resign(ctx context.Context) error { return t.lock.Release(ctx) }
