package fence

import (
	"strconv"
	"sync"
)

// DefaultMaxResources is how many resources a Guard remembers where Config.MaxResources is 0.
const DefaultMaxResources = 100_000

// Config bounds what a Guard accepts. The zero value is ready to use.
type Config struct {
	// MaxResources is how many resources the guard remembers; one more is *FullError. Nothing
	// is evicted: a guard that has forgotten the newest token of a resource accepts stale ones.
	// Default: DefaultMaxResources, which with names of 512 bytes takes about 70 MiB. Optional.
	MaxResources int
	// MaxJump is by how much a token may exceed the newest token seen of its resource; more is
	// *JumpError. The first token of a resource has nothing to compare with. Tokens that are
	// readings of a clock in microseconds (Redis, the SQL stores) jump by the time between two grants, and
	// revisions (etcd, Consul, Kubernetes, ZooKeeper) by everything that the store has written in
	// between. So no bound is right for all stores. It must be above the jump after the longest
	// pause that can occur: for Redis, a year is 31,536,000,000,000. Default: no bound. Optional.
	MaxJump Token
}

// Guard refuses stale tokens for resources of one process. It remembers one stamp for each
// resource, until Forget: it cannot know when a late write can no longer arrive. Use NewGuard or
// New to create one. Its methods are safe for concurrent use.
//
// # More than one lock store
//
// Tokens of different stores do not compare: a program that moves its locks from one store to
// another would refuse all writes, or none. So a guard has an epoch, 0 at first. A program that
// uses the new store uses [Guard.Epoch] with a greater number: its first write shuts out every
// token of the previous store, whatever its value, with *EpochError.
type Guard struct {
	known *known
	epoch uint32
}

// known is the state that all epochs of a guard share.
type known struct {
	cfg Config
	mu  sync.Mutex
	by  map[string]*newest
}

// newest is the greatest stamp seen of a resource.
type newest struct {
	mu    sync.Mutex // held during a write
	stamp Stamp      // token 0: none was seen
	users int        // callers that use it or wait for it; guarded by known.mu
}

// NewGuard returns a guard that has seen no token, with the default bounds.
func NewGuard() *Guard {
	return &Guard{known: &known{cfg: Config{MaxResources: DefaultMaxResources, MaxJump: MaxToken}, by: make(map[string]*newest)}}
}

// New returns a guard that has seen no token, with the given bounds.
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

// Do runs write if the token is not stale, and remembers the token. In the meantime nothing else is
// written to that resource through the guard, so no later token can come in between. Do returns the
// result of write. The token counts as seen even if write fails. write must not call Do for the
// same resource.
//
// Errors: *StaleError, *EpochError, *JumpError, *FullError, *InvalidError: then write was not run,
// and the token was not remembered.
func (g *Guard) Do(resource string, t Token, write func() error) error {
	return g.DoStamp(resource, Stamp{g.epoch, t}, write)
}

// DoStamp is Do for a token that was presented with its epoch. Another epoch than that of the
// guard is *EpochError.
func (g *Guard) DoStamp(resource string, s Stamp, write func() error) error {
	if err := ValidateStamp(resource, s, g.epoch); err != nil {
		return err
	}
	if write == nil {
		return &InvalidError{Field: "write", Value: "nil", Bound: "a function"}
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

// admit compares the stamp with the newest one and remembers it. n.mu is held.
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

// Check is Do without a write. It says only that no later token was seen until now: if the write
// itself is elsewhere, that place has to check too.
func (g *Guard) Check(resource string, t Token) error {
	return g.Do(resource, t, func() error { return nil })
}

// Forget makes room for another resource. Use it for a resource that no late write can reach any
// more: because it was deleted and its name is never used again, or because its service has refused
// its name since. Afterwards the guard accepts any token of that resource. Forget waits for a write
// of the resource to end.
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

// use returns the state of the resource, and keeps it until unuse.
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

// find is use for a resource that is already known; it returns nil for any other.
func (k *known) find(resource string) *newest {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.by[resource]
	if n != nil {
		n.users++
	}
	return n
}

// unuse drops a resource of which no token was seen when its last user has left. The caller has
// unlocked n.mu.
func (k *known) unuse(resource string, n *newest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n.users--; n.users == 0 && n.stamp.Token == 0 { // the last user: no other goroutine writes the stamp
		delete(k.by, resource)
	}
}
