package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// Scenario is one workload, run with each contender.
type Scenario struct {
	// ID is its name: "own/64". Required.
	ID string
	// Title describes the workload, for people. Required.
	Title string
	// Needs are the abilities that a contender must have. Optional.
	Needs Ability
	// Waiters is the number of concurrent waiters; an engine may be too slow for many. Optional.
	Waiters int
	// Rounds is the number of rounds that suffice. Default: the number requested. Optional.
	Rounds int
	// Run runs it once. Required.
	Run func(ctx context.Context, t *Trial) (Figures, error)
	// Metered is true when Run is to run once more to count the server's work.
	Metered bool
}

// Trial is one run of a scenario with one contender.
type Trial struct {
	Engine    *Engine
	Contender *Contender
	// Budget is how long to measure.
	Budget time.Duration
	// TTL of the locks.
	TTL time.Duration
	// Prefix of the names of locks: new for each trial.
	Prefix string
	// Metered asks for counts of the server's work instead of times.
	Metered bool
}

// Scenarios returns all scenarios in the order in which they are run.
func Scenarios() []Scenario {
	var all []Scenario
	for _, n := range []int{1, 8, 16, 32, 64, 256} {
		all = append(all, own(n))
	}
	for _, n := range []int{8, 50, 100, 1000} {
		all = append(all, contended(n, 0))
	}
	for _, n := range []int{8, 100, 1000} {
		all = append(all, contended(n, time.Millisecond))
	}
	all = append(all, handOver())
	for _, n := range []int{10, 100, 1000} {
		all = append(all, sessions(n))
	}
	all = append(all, sharing(64, 8), permits(64, 8))
	for _, n := range []int{100, 10_000, 100_000} {
		all = append(all, renewing(n))
	}
	return append(all, idle(1000))
}

// own is n goroutines, each with an uncontended lock.
func own(n int) Scenario {
	c := group{goroutines: n}
	return Scenario{
		ID: fmt.Sprintf("own/%d", n), Title: goroutines(n) + ", each with a lock of its own",
		Run: c.run, Metered: true,
	}
}

// contended is n goroutines that all want the same lock all the time.
func contended(n int, work time.Duration) Scenario {
	// The longer the queue, the longer it takes to see starvation.
	c := group{goroutines: n, one: true, work: work, cycles: minCycles, stretch: max(1, n/300)}
	id, title := fmt.Sprintf("one/%d", n), goroutines(n)+" that all want one lock, again and again"
	if work > 0 {
		c.cycles = 1
		id, title = id+"/"+work.String(), title+", and keep it for "+work.String()
	}
	return Scenario{ID: id, Title: title, Needs: CanWait, Waiters: n, Run: c.run, Metered: true}
}

// handOver is two clients that acquire one lock in turn: when one releases it, the other already
// waits.
func handOver() Scenario {
	c := group{goroutines: 2, one: true, clients: 2, work: time.Millisecond, cycles: 1}
	return Scenario{ID: "hand/2", Title: "2 clients that hand one lock to and fro", Needs: CanWait, Waiters: 2, Run: c.run}
}

// sessions is n clients that all want one lock. A hand-over should cost the server the same however
// many of them wait.
func sessions(n int) Scenario {
	c := group{goroutines: n, one: true, sessions: n, cycles: minCycles, stretch: max(1, n/300)}
	return Scenario{
		ID: fmt.Sprintf("sessions/%d", n), Title: fmt.Sprintf("%d clients, each with a session and a goroutine, that all want one lock, again and again", n),
		Needs: CanWait | CanJoin, Waiters: n, Run: c.run, Metered: true,
	}
}

// sharing is n goroutines that read under one lock; every writeEvery-th of them writes.
func sharing(n, writeEvery int) Scenario {
	c := group{goroutines: n, one: true, shared: true, writeEvery: writeEvery, cycles: 1}
	return Scenario{
		ID: fmt.Sprintf("shared/%d", n), Title: fmt.Sprintf("%s on one lock, %d of them exclusive and the others shared", goroutines(n), n/writeEvery),
		Needs: CanWait | CanShare, Waiters: n, Run: c.run, Metered: true,
	}
}

// permits is n goroutines at a semaphore.
func permits(n, limit int) Scenario {
	c := group{goroutines: n, one: true, shared: true, limit: limit, cycles: minCycles}
	return Scenario{
		ID: fmt.Sprintf("permits/%d", n), Title: fmt.Sprintf("%s at a semaphore of %d", goroutines(n), limit),
		Needs: CanWait | CanPermit, Waiters: n, Run: c.run, Metered: true,
	}
}

// minCycles is the minimum number of turns of each waiter of a fair lock. With fewer, a difference
// of one turn would look like unfairness.
const minCycles = 6

// open opens the contender and returns the function that closes it.
func (t *Trial) open(ctx context.Context, parallel int) (Locker, func() error, error) {
	locker, err := t.Contender.Open(ctx, Config{URL: t.Engine.URL, TTL: t.TTL, Parallel: parallel})
	if err != nil {
		return nil, nil, fmt.Errorf("open: %w", err)
	}
	return locker, closing(ctx, locker), nil
}

// closing returns the function that closes the locker.
func closing(ctx context.Context, l Locker) func() error {
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			return fmt.Errorf("close: %w", err)
		}
		return nil
	}
}

const (
	closeTimeout = 20 * time.Second
	stopTimeout  = 60 * time.Second
)

// ping returns the median round trip without other load; 0 if the engine has no Ping.
func (t *Trial) ping(ctx context.Context) (float64, error) {
	if t.Engine.Ping == nil {
		return 0, nil
	}
	var samples []time.Duration
	for begin := time.Now(); time.Since(begin) < t.Budget/10 || len(samples) < 20; {
		asked := time.Now()
		if err := t.Engine.Ping(ctx); err != nil {
			return 0, fmt.Errorf("ping: %w", err)
		}
		samples = append(samples, time.Since(asked))
	}
	return Percentile(samples, 0.5).Seconds(), nil
}

func goroutines(n int) string {
	if n == 1 {
		return "1 goroutine"
	}
	return strconv.Itoa(n) + " goroutines"
}
