package fence

import (
	"cmp"
	"sync"
)

// Guard refuses stale tokens for resources of one process. It remembers one stamp for
// each resource, for as long as it lives: it cannot know when a late write is no longer
// to be feared. Make one with NewGuard; its methods may be called at once.
//
// # More than one lock store
//
// Tokens of different stores do not compare: a program that moves its locks from one to
// another would refuse all writes, or none. So a guard has an epoch, 0 at first. Who uses
// the new store uses [Guard.Epoch] with a greater number: its first write shuts out every
// token of the store before, whatever its value.
type Guard struct {
	known *known
	epoch uint32
}

// known is what all epochs of a guard share.
type known struct {
	mu sync.Mutex
	by map[string]*newest
}

// newest is the greatest stamp of a resource.
type newest struct {
	mu    sync.Mutex // held while somebody writes
	epoch uint32
	token Token
}

// NewGuard makes a guard that has seen nothing.
func NewGuard() *Guard { return &Guard{known: &known{by: make(map[string]*newest)}} }

// Epoch gives the same guard for the tokens of another lock store: see Guard.
func (g *Guard) Epoch(n uint32) *Guard { return &Guard{known: g.known, epoch: n} }

// Do runs write if the token is not stale, and remembers the token. Nothing else is
// written to that resource meanwhile, so that no later token can come in between. What
// write returns is returned; the token counts as seen also when that is an error. write
// must not call Do for the same resource.
//
// Errors: *StaleError, *InvalidError: then write was not run.
func (g *Guard) Do(resource string, t Token, write func() error) error {
	if err := Validate(resource, t); err != nil {
		return err
	}
	n := g.known.of(resource)
	n.mu.Lock()
	defer n.mu.Unlock()
	if c := cmp.Or(cmp.Compare(n.epoch, g.epoch), cmp.Compare(n.token, t)); c > 0 {
		return Stale(resource, g.epoch, t, n.epoch, n.token)
	}
	n.epoch, n.token = g.epoch, t
	return write()
}

// Check is Do without anything to write. It says only that no later token was seen until
// now: when the write itself is elsewhere, that has to check too.
func (g *Guard) Check(resource string, t Token) error {
	return g.Do(resource, t, func() error { return nil })
}

func (k *known) of(resource string) *newest {
	k.mu.Lock()
	defer k.mu.Unlock()
	n, ok := k.by[resource]
	if !ok {
		n = new(newest)
		k.by[resource] = n
	}
	return n
}

// Stale makes the error of a guard: the stamp that was given is less than the newest one.
// The newest token is told only where it is of the same epoch: others do not compare.
func Stale(resource string, epoch uint32, t Token, newestEpoch uint32, newest Token) error {
	if newestEpoch != epoch {
		newest = 0
	}
	return &StaleError{Resource: resource, Token: t, Newest: newest}
}
