package bench

import (
	"context"
	"time"
)

// Kind says whose a contender is.
type Kind string

// The kinds of contenders.
const (
	KindOurs Kind = "ours"
	KindRaw  Kind = "raw"  // the bare commands of the engine: a limit, not a lock
	KindPeer Kind = "peer" // somebody else's library
	KindLoop Kind = "loop" // what people write by hand
)

// Ability is what a contender can do besides taking a lock that nobody else wants.
type Ability uint8

// The abilities; they are added up.
const (
	// CanWait: Lock waits until it has the lock.
	CanWait Ability = 1 << iota
	// CanRenew: a lock is kept for as long as it is held, without anybody asking.
	CanRenew
	// CanShare: the locker is a ShareLocker that takes shared locks.
	CanShare
	// CanPermit: the locker is a ShareLocker that takes permits.
	CanPermit
	// CanToken: locks have fencing tokens, and each is greater than the one before.
	CanToken
)

// Contender is one implementation that is measured.
type Contender struct {
	// Name as its users know it: "holdfast", "bsm/redislock". Required.
	Name string
	// Kind says whose it is. Required.
	Kind Kind
	// Can is what it can do. Optional.
	Can Ability
	// Open connects to the engine. The bench opens it anew for each round. Required.
	Open func(ctx context.Context, cfg Config) (Locker, error)
}

// Config is what a contender is opened with.
type Config struct {
	// URL of the engine, as package open has it.
	URL string
	// TTL of the locks.
	TTL time.Duration
	// Parallel is how many calls of Lock there will be at once.
	Parallel int
}

// Locker is a contender that is open: one client, which all goroutines share. All its
// methods may be called at once.
type Locker interface {
	// Lock takes the lock, and waits for it where the contender can. It returns soon
	// after ctx ended.
	Lock(ctx context.Context, name string) (Held, error)
	// Close ends the client. Nothing is held any more.
	Close(ctx context.Context) error
}

// ShareLocker also takes locks that several may hold at once.
type ShareLocker interface {
	Locker
	// LockShared takes a shared lock, or with a limit above 0 one of so many permits,
	// and waits for it.
	LockShared(ctx context.Context, name string, limit int) (Held, error)
}

// Held is a lock that was taken.
type Held struct {
	// Token is the fencing token; 0 where there is none.
	Token uint64
	// Unlock gives the lock back.
	Unlock func(ctx context.Context) error
}

// Engine is a store with those who lock on it.
type Engine struct {
	// Name is the scheme of the URL: "redis". Required.
	Name string
	// URL is what contenders are opened with. It is never told to people: it may hold a
	// password. Required.
	URL string
	// Version is what the server says of itself. Optional.
	Version string
	// Local is true when the bench started the server.
	Local bool
	// Private is true for a store that other processes cannot reach.
	Private bool
	// Beside is the URL of another server that was started with it, for a contender that
	// is to be compared on it. Optional.
	Beside string
	// Contenders, ours first. Required.
	Contenders []Contender
	// Ping is the cheapest round trip to the server. Optional.
	Ping func(ctx context.Context) error
	// Meter counts what the server does until the function that it gives is called.
	// Counting may slow the server down. Optional.
	Meter func(ctx context.Context) (func() (Load, error), error)
	// Close ends what the engine itself started. Required.
	Close func() error
}

// Load is what a server did while it was metered.
type Load struct {
	// Requests are what clients sent.
	Requests int64
	// Commands are what the server executed for that: a script may have many.
	Commands int64
}
