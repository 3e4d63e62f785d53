package backendtest

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// T is what a harness and the cases need of a test. A *testing.T is a T; [Case.Run] brings its
// own.
type T interface {
	// Helper marks the caller as not worth naming in a failure.
	Helper()
	// Logf logs a message. It is safe for concurrent use.
	Logf(format string, args ...any)
	// Errorf records a failure. It is safe for concurrent use.
	Errorf(format string, args ...any)
	// Fatalf records a failure and ends the calling goroutine, which has to be the one that the
	// T was given to.
	Fatalf(format string, args ...any)
	// Cleanup registers f to be called when the case has ended, last registered first.
	Cleanup(f func())
	// Context ends when the case has ended or took too long. In a Cleanup it has not ended yet.
	Context() context.Context
}

// Harness says how to reach the store under test.
type Harness struct {
	// Open returns a new backend value on the store, as another process would have one: values
	// share nothing but the store. The suite closes it. Open is called concurrently. Required.
	Open func(t T) backend.Backend
	// Only are the cases that Run runs, as "C1/exclusive-excludes"; nil: all that apply. For a variant of a store that
	// runs all of them somewhere else: another transport, another version. Optional.
	Only []string
	// Restart kills the store without a clean shutdown and starts it again with its data. The
	// backend values that are open stay open. It returns when the store accepts connections.
	// Nil leaves the restart cases out, which is an error for a backend that claims to be
	// durable, unless NoRestart says why. Optional.
	Restart func(t T)
	// NoRestart is the reason why there is no Restart. Optional.
	NoRestart string
	// SlowDisk makes each sync of the store's log take some milliseconds, until fast is
	// called, also across Restart. Restart loses what was not synced. Nil is an error for a
	// backend that claims to be durable and has Restart, unless NoSlowDisk says why. Optional.
	SlowDisk func(t T) (fast func())
	// NoSlowDisk is the reason why there is no SlowDisk. Optional.
	NoSlowDisk string
	// Kills is the number of times that C2/killed-under-load restarts the store. 0 is 3; the
	// environment variable HOLDFAST_KILLS sets it for a soak. Optional.
	Kills int
	// TTL of the cases that wait for something to expire. 0 is the greater of
	// Capabilities.MinTTL and one second. Optional.
	TTL time.Duration
	// Slack is how late a busy machine may make anything. It is added to every upper bound,
	// never to a lower one. 0 is thirty seconds. Optional.
	Slack time.Duration
	// Parallel is the number of cases that Run runs concurrently. They mostly wait, so it has
	// nothing to do with the number of processors. 0 is 16. Optional.
	Parallel int
	// Holders is the number of shared holders that the case makes which breaks a lock of many,
	// with the longest name, and one in 16 with the longest owner and note. 0 is 5,000. A store
	// that cannot keep as many for one lock, or needs more than about ten seconds to make them,
	// sets fewer, and says why beside it. Optional.
	Holders int
}

const (
	defaultTTL      = time.Second
	defaultSlack    = 30 * time.Second
	defaultParallel = 16
	defaultKills    = 3
)

// withDefaults fills in the fields that the caller left zero.
func (h Harness) withDefaults(caps backend.Capabilities) Harness {
	if h.TTL == 0 {
		h.TTL = max(caps.MinTTL, defaultTTL)
	}
	if h.Slack == 0 {
		h.Slack = defaultSlack
	}
	if h.Parallel <= 0 {
		h.Parallel = defaultParallel
	}
	if h.Kills <= 0 {
		h.Kills = defaultKills
	}
	if h.Holders <= 0 {
		h.Holders = manyHolders
	}
	return h
}
