package k8slock

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// The marks on the objects of this package.
const (
	kindLabel   = "holdfast.io/kind" // lock or session
	kindLock    = "lock"
	kindSession = "session"
	stateKey    = "holdfast.io/state" // annotation: record or sessionState in JSON
)

const (
	// maxState bounds the state of a lock that a waiter joins: Kubernetes accepts 256 KiB of
	// annotations.
	maxState = 240 << 10
	// growth is by how much the entry of a waiter may grow when it is granted: by the time and the
	// token. A lock must have room for that, or it could not be handed over.
	growth = len(`,"g":1700000000000,"t":18446744073709551615`)
)

// errFull means that the queue has no room for another entry.
var errFull = errors.New("the queue of the lock is full: a Lease object has no room for another waiter")

// entry is a lease that is held or waiting.
type entry struct {
	Lease   backend.LeaseID   `json:"i"`
	Session backend.SessionID `json:"s"`
	Mode    backend.Mode      `json:"m,omitempty"`
	Limit   int               `json:"l,omitempty"`
	Permits int               `json:"p,omitempty"`
	Owner   string            `json:"o,omitempty"`
	Note    string            `json:"n,omitempty"`
	Asked   int64             `json:"a,omitempty"` // milliseconds of Unix time, by the API server's clock
	Granted int64             `json:"g,omitempty"`
	Token   fence.Token       `json:"t,omitempty"` // 0: it is waiting
}

func (e entry) claim() backend.Claim {
	return backend.Claim{Mode: e.Mode, Limit: e.Limit, Permits: max(1, e.Permits)}
}

// broken is the newest break of a lock.
type broken struct {
	Leases []backend.LeaseID `json:"l,omitempty"`
	Reason string            `json:"r,omitempty"`
}

// state is what a lock's Lease keeps in addition to the fields that client-go knows.
type state struct {
	Name string `json:"name"`
	// Queue is the holders, and then the waiters, in order.
	Queue []entry `json:"queue,omitempty"`
	// Last is the greatest token that was given.
	Last fence.Token `json:"last,omitempty"`
	// Identity is the holderIdentity that was written with Queue. If the object has another one, a
	// client that does not know Queue took the lock.
	Identity string  `json:"id,omitempty"`
	Broken   *broken `json:"broken,omitempty"`
	// Observed is for how long a session of the queue was observed.
	Observed observation `json:"observed,omitzero"`
	// Ours: this package made the object, so it may delete it.
	Ours bool `json:"ours,omitempty"`
	// Touched is the version that was replaced without another change: the API server does not store an
	// update that differs in nothing, and an older write could still succeed.
	Touched uint64 `json:"touched,omitempty"`
}

// record is a lock as its Lease has it.
type record struct {
	state

	object  *object
	foreign bool // a leader election that is not ours has it
	changed bool
	joined  bool // a lease joined the queue with this change
	grants  int  // with this change
	touch   bool // to be written even unchanged, if an older write may be on its way
}

// perWrite is how many tokens one write may give: they are made of the version that it replaces.
const (
	tokenBits = 10
	perWrite  = 1<<tokenBits - 1
)

// open parses the state of a lock's object.
func open(lock string, o *object) (*record, error) {
	var st state
	if text, ok := o.Metadata.Annotations[stateKey]; ok {
		if err := json.Unmarshal([]byte(text), &st); err != nil {
			return nil, fmt.Errorf("the annotation %s of Lease %q: %w", stateKey, o.Metadata.Name, err)
		}
		if st.Name != lock {
			return nil, fmt.Errorf("object %q is of lock %q", o.Metadata.Name, st.Name)
		}
	}
	st.Name = lock
	return st.of(o), nil
}

// of returns the record of the state that the object has.
func (s state) of(o *object) *record {
	r := &record{state: s, object: o}
	if holder := o.Spec.HolderIdentity; holder != r.Identity {
		// client-go took the lock, and may have released it since.
		r.foreign = holder != ""
		r.drop(func(e entry) bool { return e.Token > 0 })
		r.Identity = ""
	}
	return r
}

// find returns the index of a lease, or -1.
func (r *record) find(id backend.LeaseID) int {
	return slices.IndexFunc(r.Queue, func(e entry) bool { return e.Lease == id })
}

// entry returns the entry of a lease, or nil.
func (r *record) entry(id backend.LeaseID) *entry {
	if i := r.find(id); i >= 0 {
		return &r.Queue[i]
	}
	return nil
}

// drop removes entries.
func (r *record) drop(which func(entry) bool) {
	n := len(r.Queue)
	r.Queue = slices.DeleteFunc(r.Queue, which)
	r.changed = r.changed || len(r.Queue) != n
}

// out returns how many leases of the queue hold the lock: its front.
func (r *record) out() int {
	n := slices.IndexFunc(r.Queue, func(e entry) bool { return e.Token == 0 })
	if n < 0 {
		return len(r.Queue)
	}
	return n
}

func (r *record) claims() []backend.Claim {
	all := make([]backend.Claim, len(r.Queue))
	for i, e := range r.Queue {
		all[i] = e.claim()
	}
	return all
}

// nextToken returns a token greater than every one before: than those of earlier writes, whose
// versions are lower, and than those of this one. That holds even if the object was deleted and
// made again.
func (r *record) nextToken() fence.Token {
	r.grants++
	r.Last = max(r.Last+1, fence.Token(r.object.version())<<tokenBits)
	r.changed = true
	return r.Last
}

// promote grants the lock to the front of the queue, as far as it fits.
func (r *record) promote(now time.Time) {
	n, admitted := r.out(), r.admits()
	for i := n; i < n+admitted && r.grants < perWrite; i++ {
		r.Queue[i].Token, r.Queue[i].Granted = r.nextToken(), now.UnixMilli()
	}
}

// admits returns how many waiters could have the lock. There are some before promote was called, and where
// client-go's holder released the lock, which does not know the queue.
func (r *record) admits() int {
	if r.foreign {
		return 0
	}
	claims, n := r.claims(), r.out()
	return backend.Admit(claims[:n], claims[n:])
}

// dropDead removes the entries of sessions that do not live.
func (r *record) dropDead(lives func(backend.SessionID) (bool, error)) error {
	known := make(map[backend.SessionID]bool)
	for _, e := range r.Queue {
		if _, ok := known[e.Session]; ok {
			continue
		}
		live, err := lives(e.Session)
		if err != nil {
			return err
		}
		known[e.Session] = live
	}
	r.drop(func(e entry) bool { return !known[e.Session] })
	return nil
}

// idle reports whether the object is not in use: it was made here, and the lock has no holder and
// no waiter.
func (r *record) idle() bool { return r.Ours && !r.foreign && len(r.Queue) == 0 }

// first returns the lease that waits first.
func (r *record) first() backend.LeaseID {
	if n := r.out(); n < len(r.Queue) {
		return r.Queue[n].Lease
	}
	return ""
}

// seal writes the record into a copy of its object. duration is for how long client-go's candidates
// are to respect a holder.
func (r *record) seal(now time.Time, duration time.Duration) (*object, error) {
	o := r.object.clone()
	if !r.changed {
		r.Touched = r.object.version()
	}
	r.Identity = ""
	if !r.foreign {
		if r.out() > 0 {
			r.Identity = identity(r.Queue[0])
		}
		r.present(&o.Spec, now, duration)
	}
	text, err := json.Marshal(&r.state)
	if err != nil {
		return nil, fmt.Errorf("encode the lock: %w", err)
	}
	if r.joined && len(text)+growth*(len(r.Queue)-r.out()) > maxState {
		return nil, errFull
	}
	o.Metadata.Labels[kindLabel] = kindLock
	o.Metadata.Annotations[stateKey] = string(text)
	return o, nil
}

// present writes the holder of the lock into the fields that client-go reads.
func (r *record) present(s *spec, now time.Time, duration time.Duration) {
	at := &microTime{now}
	if s.HolderIdentity != r.Identity {
		s.AcquireTime = at
		if r.Identity != "" && s.LeaseTransitions < math.MaxInt32 {
			s.LeaseTransitions++
		}
	}
	s.HolderIdentity, s.RenewTime = r.Identity, at
	s.LeaseDurationSeconds = 1 // as client-go writes it when it releases a lock
	if r.Identity != "" {
		s.LeaseDurationSeconds = int32(min(math.MaxInt32, (duration+time.Second-1)/time.Second)) //nolint:gosec // bounded
	}
}

// identity returns the holder as client-go's candidates see it. It names a lease, so no other
// holder has it.
func identity(e entry) string {
	if e.Owner == "" {
		return "holdfast_" + string(e.Lease)
	}
	return e.Owner + "_" + string(e.Lease)
}

// sessionState is what a session's Lease keeps.
type sessionState struct {
	ID    backend.SessionID `json:"id"`
	TTL   time.Duration     `json:"ttl"` // nanoseconds
	Value string            `json:"value"`
}
