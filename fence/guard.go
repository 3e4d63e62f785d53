package fence

import (
	"strconv"
	"sync"
)

// DefaultMaxResources is how many resources a Guard remembers where Config.MaxResources is 0.
const DefaultMaxResources = 100_000

// Config bounds what a Guard accepts. The zero value is good.
type Config struct {
	// MaxResources is how many resources the guard remembers; one more is *FullError. Nothing
	// is evicted: a guard that has forgotten the newest token of a resource accepts stale ones.
	// Default: DefaultMaxResources, which with names of 512 bytes takes about 70 MiB. Optional.
	MaxResources int
	// MaxJump is by how much a token may exceed the newest one that was seen of its resource;
	// more is *JumpError. The first token of a resource has nothing to compare with. Tokens
	// that are readings of a clock in microseconds (Redis, Redlock) jump by the time between two
	// grants, and revisions (etcd, Consul, Kubernetes, ZooKeeper) by all that the store has
	// written between them. So no bound is right for all; it has to be above the jump after the
	// longest pause that can occur: for Redis, a year is 31,536,000,000,000. Default: no bound.
	// Optional.
	MaxJump Token
}

// Guard refuses stale tokens for resources of one process. It remembers one stamp for
// each resource, until Forget: it cannot know when a late write can no longer arrive. Make one
// with NewGuard or New. Its methods are safe for concurrent use.
//
// # More than one lock store
//
// Tokens of different stores do not compare: a program that moves its locks from one to
// another would refuse all writes, or none. So a guard has an epoch, 0 at first. A program
// that uses the new store uses [Guard.Epoch] with a greater number: its first write shuts out
// every token of the store before, whatever its value, with *EpochError.
type Guard struct {
	known *known
	epoch uint32
}

// known is what all epochs of a guard share.
type known struct {
	cfg Config
	mu  sync.Mutex
	by  map[string]*newest
}

// newest is the greatest stamp of a resource.
type newest struct {
	mu    sync.Mutex // held during a write
	stamp Stamp      // token 0: none was seen
	users int        // that have it or wait for it; known.mu guards it
}

// NewGuard makes a guard that has seen nothing, with the default bounds.
func NewGuard() *Guard {
	return &Guard{known: &known{cfg: Config{MaxResources: DefaultMaxResources, MaxJump: MaxToken}, by: make(map[string]*newest)}}
}

// New makes a guard that has seen nothing, with the bounds given.
//
// Errors: *InvalidError for a field that is out of bounds.
func New(cfg Config) (*Guard, error) {
	if cfg.MaxResources < 0 {
		return nil, &InvalidError{Field: "max resources", Value: strconv.Itoa(cfg.MaxResources), Bound: "0 or more"}
	}
	if cfg.MaxJump > MaxToken {
		return nil, &InvalidError{Field: "max jump", Value: cfg.MaxJump.String(), Bound: "0 to 9223372036854775807"}
	}
	g := NewGuard()
	if cfg.MaxResources > 0 {
		g.known.cfg.MaxResources = cfg.MaxResources
	}
	if cfg.MaxJump > 0 {
		g.known.cfg.MaxJump = cfg.MaxJump
	}
	return g, nil
}

// Epoch returns the same guard for the tokens of another lock store: see Guard.
func (g *Guard) Epoch(n uint32) *Guard { return &Guard{known: g.known, epoch: n} }

// Do runs write if the token is not stale, and remembers the token. Nothing else is
// written to that resource in the meantime, so no later token can come in between. Do
// returns what write returns; the token counts as seen also when that is an error. write
// must not call Do for the same resource.
//
// Errors: *StaleError, *EpochError, *JumpError, *FullError, *InvalidError: then write was not
// run, and the token was not remembered.
func (g *Guard) Do(resource string, t Token, write func() error) error {
	return g.DoStamp(resource, Stamp{g.epoch, t}, write)
}

// DoStamp is Do for a token that was presented with its epoch. Another epoch than that of the
// guard is *EpochError.
func (g *Guard) DoStamp(resource string, s Stamp, write func() error) error {
	if err := ValidateStamp(resource, s, g.epoch); err != nil {
		return err
	}
	n, err := g.known.use(resource)
	if err != nil {
		return err
	}
	defer g.known.unuse(resource, n)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.admit(resource, s, g.known.cfg.MaxJump); err != nil {
		return err
	}
	return write()
}

// admit compares the stamp with the newest one, and remembers it. n.mu is held.
func (n *newest) admit(resource string, s Stamp, jump Token) error {
	if n.stamp.Compare(s) > 0 {
		return Refusal(resource, s, n.stamp)
	}
	seen := n.stamp.Token > 0 && n.stamp.Epoch == s.Epoch
	if seen && s.Token-n.stamp.Token > jump {
		return &JumpError{Resource: resource, Token: s.Token, Max: n.stamp.Token + jump}
	}
	n.stamp = s
	return nil
}

// Check is Do without anything to write. It says only that no later token was seen until
// now: when the write itself is elsewhere, that has to check too.
func (g *Guard) Check(resource string, t Token) error {
	return g.Do(resource, t, func() error { return nil })
}

// Forget makes room for another resource. It is for a resource that no late write can reach
// any more, because it was deleted and its name is never used again, or because its service
// has refused its name since: afterwards the guard accepts any token of it. It waits for
// a write of the resource to end.
func (g *Guard) Forget(resource string) {
	n := g.known.find(resource)
	if n == nil {
		return
	}
	defer g.known.unuse(resource, n)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stamp = Stamp{}
}

// use returns what is known of the resource, and keeps it until unuse.
//
// Errors: *FullError.
func (k *known) use(resource string) (*newest, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n, ok := k.by[resource]
	if !ok {
		if len(k.by) >= k.cfg.MaxResources {
			return nil, &FullError{Resource: resource, Max: k.cfg.MaxResources}
		}
		n = new(newest)
		k.by[resource] = n
	}
	n.users++
	return n, nil
}

// find is use for a resource that is known already; nil: it is not.
func (k *known) find(resource string) *newest {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.by[resource]
	if n != nil {
		n.users++
	}
	return n
}

// unuse drops a resource of which no token was seen once its last user has left. The
// caller has released n.mu.
func (k *known) unuse(resource string, n *newest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n.users--; n.users == 0 && n.stamp.Token == 0 { // the last user: none other writes the stamp
		delete(k.by, resource)
	}
}
