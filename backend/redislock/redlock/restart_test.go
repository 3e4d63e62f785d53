package redlock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
)

// Several prefixes on the same nodes: each finds out for itself whether the restart lost
// data, although another was faster to ask.
func TestRestartThatLosesVotes(t *testing.T) {
	t.Parallel()
	c := start(t, "--appendonly", "no", "--save", "")
	var all []*redlock.Backend
	for _, prefix := range []string{"hfr", "other"} {
		b, err := redlock.Open(t.Context(), c.url("prefix="+prefix), redlock.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		all = append(all, b)
		for _, s := range c {
			run, _, _ := strings.Cut(after(s.Info("server"), "run_id:"), "\r")
			s.Do("SET", prefix+":m", "hfr2 1 1 "+run+" 1")
		}
	}
	ask := func(b *redlock.Backend) error {
		_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "one", Lease: backend.NewLeaseID(), Timed: true, TTL: 5 * time.Minute})
		return err
	}
	for _, s := range c {
		s.Do("SAVE")
	}
	for _, b := range all {
		if err := ask(b); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range c {
		s.Restart() // as of the SAVE
	}
	for i, b := range all {
		for deadline := time.Now().Add(time.Minute); ; {
			err := ask(b)
			if err == nil {
				t.Fatalf("prefix %d: granted, though it is held", i)
			}
			if errors.Is(err, backend.ErrQuarantine) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}
