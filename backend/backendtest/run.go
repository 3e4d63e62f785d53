package backendtest

import (
	"context"
	"os"
	"slices"
	"strconv"
	"testing"
)

// Run runs all cases that apply to the backend, each as a subtest named after its ID and name:
// "C1/exclusive-excludes". Many cases run concurrently, see Harness.Parallel, except those that
// restart the store: they run one by one. Cases that a -run pattern leaves out are not run. The
// environment variable HOLDFAST_KILLS sets Harness.Kills.
func Run(t *testing.T, h Harness) {
	t.Helper()
	caps := capabilities(t, h)
	if kills := os.Getenv("HOLDFAST_KILLS"); kills != "" {
		n, err := strconv.Atoi(kills)
		if err != nil || n <= 0 {
			t.Fatalf("HOLDFAST_KILLS is %q: it has to be a number above 0", kills)
		}
		h.Kills = n
	}
	h = h.withDefaults(caps)
	cases := chosen(t, h.Only)
	if caps.Durable && h.Restart == nil && h.NoRestart == "" {
		t.Errorf("C2: %s claims to be durable: give Harness.Restart, or say in NoRestart why not", caps.Name)
	}
	if caps.Durable && h.Restart != nil && h.SlowDisk == nil && h.NoSlowDisk == "" {
		t.Errorf("C2: %s claims to be durable: give Harness.SlowDisk, or say in NoSlowDisk why not", caps.Name)
	}
	gate, crowd := make(chan struct{}, h.Parallel), make(chan struct{}, 1)
	t.Run("cases", func(t *testing.T) {
		for _, c := range cases {
			if c.Restarts {
				continue
			}
			t.Run(c.ID+"/"+c.Name, func(t *testing.T) {
				// The case runs in the background from here on; the subtest only
				// waits for it, so that -parallel does not bound how many wait.
				gates := []chan struct{}{gate}
				switch {
				case c.Alone: // all places, so that one at a time takes them
					gates = append([]chan struct{}{crowd}, slices.Repeat(gates, h.Parallel)...)
				case c.Crowds:
					gates = []chan struct{}{crowd, gate}
				}
				result := c.start(t.Context(), h, gates)
				t.Parallel()
				report(t, <-result)
			})
		}
	})
	if h.Restart == nil {
		return
	}
	t.Run("restart", func(t *testing.T) {
		for _, c := range cases {
			if c.Restarts {
				t.Run(c.ID+"/"+c.Name, func(t *testing.T) { report(t, c.Run(t.Context(), h)) })
			}
		}
	})
}

// chosen returns the cases with these names; nil: all.
func chosen(t *testing.T, only []string) []Case {
	t.Helper()
	all := Cases()
	if only == nil {
		return all
	}
	var some []Case
	for _, name := range only {
		i := slices.IndexFunc(all, func(c Case) bool { return c.ID+"/"+c.Name == name })
		if i < 0 {
			t.Fatalf("Harness.Only has %q, and there is no such case", name)
		}
		some = append(some, all[i])
	}
	return some
}

// start runs the case in the background as soon as it has passed the gates, one after the
// other.
func (c Case) start(ctx context.Context, h Harness, gates []chan struct{}) <-chan Result {
	result := make(chan Result, 1)
	go func() {
		for _, g := range gates {
			g <- struct{}{}
			defer func() { <-g }()
		}
		result <- c.Run(ctx, h)
	}()
	return result
}

// capabilities returns those of a backend value that is opened only for this.
func capabilities(t *testing.T, h Harness) caps {
	t.Helper()
	b := h.Open(t)
	c := b.Capabilities()
	if err := b.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	return c
}

func report(t *testing.T, r Result) {
	t.Helper()
	for _, s := range r.Log {
		t.Log(s)
	}
	for _, s := range r.Failures {
		t.Error(s)
	}
	if r.Skipped != "" {
		t.Logf("does not apply: %s", r.Skipped)
	}
	t.Logf("took %s", r.Took)
}
