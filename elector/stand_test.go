package elector_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/elector"
)

// TestCampaignsAtOnce: of many concurrent calls one leads, and the others return ErrRunning, also
// those that come as the term begins: a call let in then would wait in the queue behind its own
// elector.
func TestCampaignsAtOnce(t *testing.T) {
	t.Parallel()
	const rounds, calls, patience = 3000, 8, 30 * time.Second
	c, _ := client(t, memlock.NewStore(), "a")
	for range rounds {
		e := candidate(t, c, elector.Config{})
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		var all sync.WaitGroup
		for range calls {
			all.Go(func() {
				if _, err := e.Campaign(ctx); err != nil && !errors.Is(err, elector.ErrRunning) {
					t.Errorf("a campaign beside another one: %v", err)
				}
			})
		}
		all.Wait()
		cancel()
		term := e.Term()
		if term == nil {
			t.Fatal("no candidate leads")
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			return
		}
	}
}
