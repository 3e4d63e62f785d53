package bench

import (
	"context"
	"time"
)

// Ability is what a contender can do besides acquiring an uncontended lock.
type Ability uint8

// The abilities, as bits.
const (
	// CanWait: Lock blocks until it has the lock.
	CanWait Ability = 1 << iota
	// CanRenew: a lock is kept while it is held, without a call of its holder.
	CanRenew
	// CanJoin: the locker is a SessionLocker.
	CanJoin
)

// Contender is an implementation to measure.
type Contender struct {
	// Name as its users know it: "holdfast", "bsm/redislock". Required.
	Name string
	// Ours: a fault that the referee sees fails the run. Optional.
	Ours bool
	// Can is what it can do. Optional.
	Can Ability
	// Open connects to the engine. The bench opens the contender again for each round. Required.
	Open func(ctx context.Context, cfg Config) (Locker, error)
}

// Config is the argument of Contender.Open.
type Config struct {
	// URL of the engine, as package open has it.
	URL string
	// TTL of the locks.
	TTL time.Duration
}

// Locker is an open contender: one client, which all goroutines share. All its methods are safe for
// concurrent use.
type Locker interface {
	// Lock acquires the lock, and waits for it if the contender can. It returns soon after ctx
	// ended.
	Lock(ctx context.Context, name string) (Held, error)
	// Close ends the client. No lock is held any more.
	Close(ctx context.Context) error
}

// SessionLocker makes more clients on the connections that it has.
type SessionLocker interface {
	Locker
	// Session returns a client with a session of its own. It is closed before the locker.
	Session() (Locker, error)
}

// Held is an acquired lock.
type Held struct {
	// Token is the fencing token; 0 if there is none.
	Token uint64
	// Unlock releases the lock.
	Unlock func(ctx context.Context) error
}

// Engine is a store and the contenders that lock on it.
type Engine struct {
	// Name is the scheme of the URL: "redis". Required.
	Name string
	// URL is passed to Contender.Open. It is never shown, because it may contain a password.
	// Required.
	URL string
	// Version is the server's own version text. Optional.
	Version string
	// Contenders, ours first. Required.
	Contenders []Contender
	// Meter starts to count the requests that the server receives; the function that it returns ends
	// that, and returns their number. Counting may slow the server down. Optional.
	Meter func(ctx context.Context) (func() (int64, error), error)
	// CPU returns the CPU time that the server has used so far. Optional.
	CPU func() time.Duration
	// Close ends what the engine itself started. Optional.
	Close func() error
}

// cpu returns the CPU time of the server; 0 if it is unknown.
func (e *Engine) cpu() time.Duration {
	if e.CPU == nil {
		return 0
	}
	return e.CPU()
}
