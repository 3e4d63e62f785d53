package runner

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Profile is the intensity of a run.
type Profile string

// The profiles.
const (
	// Gentle delays, resets and loses replies, for less than the TTL: no worker should lose a
	// lock for long.
	Gentle Profile = "gentle"
	// Standard kills and stops workers and cuts their network for longer than the TTL.
	Standard Profile = "standard"
	// Torture does so all the time.
	Torture Profile = "torture"
	// Jepsen is the workload with which Jepsen showed in 2020 that a lock of etcd does not
	// guarantee mutual exclusion: five processes read under a lock, sleep up to the TTL, and
	// write back; every five seconds some are stopped for longer than the TTL. Here each writes
	// to a register that checks the token, too. Source: https://jepsen.io/analyses/etcd-3.4.3,
	// and lock.clj in jepsen-io/etcd.
	Jepsen Profile = "jepsen"
)

// Profiles lists the profiles.
func Profiles() []Profile { return []Profile{Gentle, Standard, Torture, Jepsen} }

// measure has the numbers of a profile.
type measure struct {
	workers   int
	tasks     int           // of each worker
	rate      int           // acquires per second at most, of all workers
	every     time.Duration // between two faults, on average
	victims   int           // of each fault; 0 is one
	maxFaulty int           // workers with a fault at the same time, at most; the others keep the locks busy
	// spared is how many workers, the last ones, never have a fault, so that nothing excuses a
	// lock that they do not get.
	spared int
	// The load: see type load. brief and long are per worker.
	brief, briefLocks, long int
}

// deepRate is how many acquires per second the tasks that do a little of everything make, for
// all workers.
func (m measure) deepRate() int { return min(m.rate, 200) } //nolint:mnd // they talk to the resource, too

func (p Profile) measure() measure {
	switch p {
	case Gentle:
		return measure{workers: 4, tasks: 2, rate: 1000, every: 2 * time.Second, maxFaulty: 2, spared: 1, brief: 8, briefLocks: 10, long: 30}
	case Torture:
		return measure{workers: 8, tasks: 3, rate: 12000, every: 250 * time.Millisecond, maxFaulty: 3, spared: 3, brief: 16, briefLocks: 20, long: 220}
	case Jepsen:
		return measure{workers: 5, tasks: 1, rate: 50, every: 5 * time.Second, victims: 2, maxFaulty: 5}
	case Standard:
	}
	return measure{workers: 6, tasks: 3, rate: 4000, every: 700 * time.Millisecond, maxFaulty: 2, spared: 2, brief: 16, briefLocks: 15, long: 120}
}

// exposed returns how many workers may have faults. The others, the last ones, are spared.
func (m measure) exposed() int { return m.workers - m.spared }

// tasksOf returns how many tasks a worker has: the maximum, one less, and so on down to one,
// and then the maximum again. A worker with few calls has to keep a lock by renewals alone.
func (m measure) tasksOf(worker int) int { return m.tasks - worker%m.tasks }

// fault is a kind of fault.
type fault string

const (
	faultFreeze      fault = "freeze" // SIGSTOP, past the TTL
	faultKill        fault = "kill"   // SIGKILL
	faultDelay       fault = "delay"
	faultHold        fault = "hold"         // both ways: everything arrives, but late
	faultHoldReplies fault = "hold replies" // requests work, and no reply arrives
	faultCut         fault = "cut"
	faultCutReplies  fault = "cut replies"
	faultReset       fault = "reset"
	faultRefuse      fault = "refuse"
	faultHalfServer  fault = "half-open, server" // the server sees a closed connection, the client does not
	faultHalfClient  fault = "half-open, client"
	faultLoseReply   fault = "lose a reply"
)

// harmful reports whether a fault lasts longer than a lease, so that a holder loses its lock.
func (f fault) harmful() bool {
	switch f { //nolint:exhaustive // the others are short
	case faultFreeze, faultKill, faultHold, faultHoldReplies, faultCut, faultCutReplies:
		return true
	}
	return false
}

// abilities describes which faults are possible.
type abilities struct {
	processes bool
	relay     bool
	link      bool // a wrapper around a backend in this process
	tied      bool // leases end when a connection breaks: none is broken before its lease has ended
}

// breaks reports whether a fault ends the leases of a holder, unless it is healed only after
// they have ended: bytes are lost, so the connection has to be closed when the network works
// again, and the leases end with it.
func (a abilities) breaks(f fault) bool {
	return a.relay && a.tied && (f == faultCut || f == faultCutReplies)
}

func (a abilities) faults(p Profile) []fault {
	var all []fault
	if p == Jepsen {
		return []fault{faultFreeze}
	}
	if a.processes {
		all = append(all, faultFreeze, faultFreeze, faultKill)
	}
	if a.processes || a.link {
		all = append(all, faultKill)
	}
	if a.relay || a.link {
		all = append(all, faultDelay, faultHold, faultHoldReplies, faultCut)
	}
	if a.relay && a.tied {
		all = append(all, faultCutReplies)
	} else if a.relay {
		all = append(all, faultCutReplies, faultReset, faultRefuse, faultHalfServer, faultHalfClient, faultLoseReply)
	}
	if p == Gentle {
		all = slices.DeleteFunc(all, func(f fault) bool {
			return f == faultKill || f == faultFreeze || a.breaks(f)
		})
	}
	return all
}

// planned is a fault in the plan.
type planned struct {
	at     time.Duration
	fault  fault
	worker int
	lasts  time.Duration
	keep   bool // the worker keeps its locks, so that the fault hits a holder
}

// plan returns the faults of a run, which are the same for the same arguments. They are dealt like
// cards, so that a short run has something of everything.
func plan(seed uint64, p Profile, a abilities, ttl, long time.Duration) []planned {
	kinds := a.faults(p)
	if len(kinds) == 0 {
		return nil
	}
	r := rand.New(rand.NewPCG(seed, 0xfa017))
	m := p.measure()
	deal := deck(r, kinds)
	var out []planned
	for at := m.every / 2; ; {
		at += m.every/2 + time.Duration(r.Int64N(int64(m.every)))
		if at >= long {
			return out
		}
		for range max(1, m.victims) {
			f := planned{at: at, fault: deal(), worker: r.IntN(m.exposed())}
			f.lasts = f.length(r, p, ttl)
			f.keep = r.IntN(2) == 0 && (p == Standard || p == Torture)
			out = append(out, f)
		}
	}
}

// deck deals the faults in random order, all of them before any of them again.
func deck(r *rand.Rand, kinds []fault) func() fault {
	kinds = slices.Clone(kinds)
	next := len(kinds)
	return func() fault {
		if next == len(kinds) {
			r.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
			next = 0
		}
		next++
		return kinds[next-1]
	}
}

// length returns how long a fault lasts.
func (f planned) length(r *rand.Rand, p Profile, ttl time.Duration) time.Duration {
	switch {
	case p == Gentle:
		return ttl / 4
	case f.fault.harmful():
		return ttl + time.Duration(r.Int64N(int64(ttl*3/2)))
	default:
		return ttl/4 + time.Duration(r.Int64N(int64(ttl)))
	}
}
