package bench

import (
	"context"
	"time"
)

// Kind is the origin of a contender.
type Kind string

// The kinds of contenders.
const (
	KindOurs    Kind = "ours"
	KindVariant Kind = "variant" // ours, through another client library
	KindRaw     Kind = "raw"     // the bare commands of the engine: a limit, not a lock
	KindPeer    Kind = "peer"    // a library of another project
	KindLoop    Kind = "loop"    // a loop written by hand
)

// Ability is what a contender can do besides acquiring an uncontended lock.
type Ability uint8

// The abilities, as bits.
const (
	// CanWait: Lock blocks until it has the lock.
	CanWait Ability = 1 << iota
	// CanRenew: a lock is kept while it is held, without a call of its holder.
	CanRenew
	// CanShare: the locker is a ShareLocker that takes shared locks.
	CanShare
	// CanPermit: the locker is a ShareLocker that takes permits.
	CanPermit
	// CanToken: locks have fencing tokens, and each is greater than the one before.
	CanToken
	// CanJoin: the locker is a SessionLocker.
	CanJoin
)

// Contender is an implementation to measure.
type Contender struct {
	// Name as its users know it: "holdfast", "bsm/redislock". Required.
	Name string
	// Kind is its origin. Required.
	Kind Kind
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
	// Parallel is the number of concurrent calls of Lock.
	Parallel int
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

// ShareLocker also acquires locks that several goroutines may hold at the same time.
type ShareLocker interface {
	Locker
	// LockShared acquires a shared lock or, with a limit above 0, one of so many permits, and waits
	// for it.
	LockShared(ctx context.Context, name string, limit int) (Held, error)
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
	// Ping is the cheapest round trip to the server. Optional.
	Ping func(ctx context.Context) error
	// Meter starts to count the server's work; the function that it returns ends that. Counting may
	// slow the server down. Optional.
	Meter func(ctx context.Context) (func() (Load, error), error)
	// CPU returns the CPU time that the server has used so far. Optional.
	CPU func() time.Duration
	// Close stops what the engine itself started. Required.
	Close func() error
}

// Load is the work of a server while it was metered.
type Load struct {
	// Requests is the number of requests that clients sent.
	Requests int64
	// Commands is the number of commands that the server executed for them: a script may have many.
	Commands int64
}

// cpu returns the CPU time of the server; 0 if it is unknown.
func (e *Engine) cpu() time.Duration {
	if e.CPU == nil {
		return 0
	}
	return e.CPU()
}
