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

// TestCampaignsAtOnce: of many calls at once one leads and the others are told that the elector
// is in the election, also those that come as the term begins: who was let in then would wait in
// line behind itself.
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
			t.Fatal("nobody leads")
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			return
		}
	}
}
