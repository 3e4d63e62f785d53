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
	// Counts: it measures only the server's work, on engines that have a Meter. Optional.
	Counts bool
	// Run runs it once. Required.
	Run func(ctx context.Context, t *Trial) (Figures, error)
	// Metered: Run is to run once more to count the server's work. Optional.
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
	for _, n := range []int{8, 50, 100} {
		all = append(all, contended(n, 0))
	}
	all = append(all, contended(8, time.Millisecond))
	for _, n := range []int{10, 100, 1000} {
		all = append(all, sessions(n))
	}
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
	c := group{goroutines: n, one: true, work: work, cycles: minCycles}
	id, title := fmt.Sprintf("one/%d", n), goroutines(n)+" that all want one lock, again and again"
	if work > 0 {
		c.cycles = 1
		id, title = id+"/"+work.String(), title+", and keep it for "+work.String()
	}
	return Scenario{ID: id, Title: title, Needs: CanWait, Run: c.run, Metered: true}
}

// sessions is n clients that all want one lock. A hand-over should cost the server the same however
// many of them wait.
func sessions(n int) Scenario {
	// The longer the queue, the longer it takes to see starvation.
	c := group{goroutines: n, one: true, sessions: n, cycles: minCycles, stretch: n / 300}
	return Scenario{
		ID: fmt.Sprintf("sessions/%d", n), Title: fmt.Sprintf("%d clients, each with a session and a goroutine, that all want one lock, again and again", n),
		Needs: CanWait | CanJoin, Run: c.run, Metered: true,
	}
}

// minCycles is the minimum number of turns of each waiter of a fair lock. With fewer, a difference
// of one turn would look like unfairness.
const minCycles = 6

// open opens the contender and returns the function that closes it.
func (t *Trial) open(ctx context.Context) (Locker, func() error, error) {
	locker, err := t.Contender.Open(ctx, Config{URL: t.Engine.URL, TTL: t.TTL})
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

func goroutines(n int) string {
	if n == 1 {
		return "1 goroutine"
	}
	return strconv.Itoa(n) + " goroutines"
}
