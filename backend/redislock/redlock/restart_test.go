package redlock_test

import (
	"errors"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// Several prefixes on the same nodes: each finds out for itself whether the restart lost
// data, although another was faster to ask.
func TestRestartThatLosesVotes(t *testing.T) {
	t.Parallel()
	c := start(t, "--appendonly", "no", "--save", "")
	var all []*redlock.Backend
	for _, prefix := range []string{"hfr", "other"} {
		all = append(all, c.open(t, "prefix="+prefix))
		for _, s := range c {
			vouch(s, prefix)
		}
	}
	for _, s := range c {
		s.Do("SAVE")
	}
	for _, b := range all {
		take(t, b, ask("one"))
	}
	for _, s := range c {
		s.Restart() // as of the SAVE
	}
	for i, b := range all {
		leasetest.Succeeds(t, func() error {
			_, err := b.Acquire(t.Context(), ask("one"))
			if err == nil {
				t.Fatalf("prefix %d: granted, though it is held", i)
			}
			if errors.Is(err, backend.ErrQuarantine) {
				return nil
			}
			return err
		})
	}
}
