// Package leaktest fails the tests of a package that leave goroutines behind.
package leaktest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// patience bounds the wait for goroutines that are ending: a machine that stands still may take
// seconds from the last statement of one to its end.
const patience = 30 * time.Second

// Main runs the tests, of a *testing.M, and exits the process with their status. If they passed and goroutines that they
// started are still running, it prints the stacks and the status is 1.
func Main(m interface{ Run() int }) { run(m, patience) }

func run(m interface{ Run() int }, patience time.Duration) {
	before := goroutines()
	status := m.Run()
	if status == 0 {
		if left := remaining(before, patience); len(left) > 0 {
			fmt.Fprintf(os.Stderr, "leaktest: %d goroutines are left:\n\n%s\n", len(left), strings.Join(left, "\n\n"))
			status = 1
		}
	}
	os.Exit(status) //nolint:forbidigo // in place of the main function of the tests
}

// remaining waits until every goroutine that is not in before has ended, for at most a time. It
// returns the stacks of those that have not.
func remaining(before map[string]string, atMost time.Duration) []string {
	const pollEvery = 10 * time.Millisecond
	for end := time.Now().Add(atMost); ; <-time.After(pollEvery) {
		var left []string
		for id, stack := range goroutines() {
			// The runtime keeps the goroutine that receives signals for as long as the process lives.
			if _, old := before[id]; !old && !strings.Contains(stack, "os/signal.signal_recv") {
				left = append(left, stack)
			}
		}
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

// goroutines returns the stacks of all goroutines but the caller's, by their numbers. A number is
// never used again.
func goroutines() map[string]string {
	buf := make([]byte, 1<<16)
	n := runtime.Stack(buf, true)
	for ; n == len(buf); n = runtime.Stack(buf, true) {
		buf = make([]byte, 2*len(buf))
	}
	stacks := make(map[string]string)
	for i, stack := range strings.Split(strings.TrimSpace(string(buf[:n])), "\n\n") {
		if id, _, _ := strings.Cut(stack, " ["); i > 0 { // the first one is the caller's
			stacks[id] = stack
		}
	}
	return stacks
}
