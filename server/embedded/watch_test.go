package embedded_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-io/holdfast/server/embedded"
)

// TestWatchesDoNotLock opens and closes watches while events are sent. In etcd's own client
// within the process, the sender to the server and the sender to the client then wait for each
// other for ever, and no waiter is woken any more.
func TestWatchesDoNotLock(t *testing.T) {
	t.Parallel()
	e, err := embedded.Start(t.Context(), embedded.Config{DataDir: t.TempDir() + "/node"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	const within = 5 * patience // each watch waits for a write, and the disk may be slow
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	c := e.Client()
	var told atomic.Int64
	var watchers, writers sync.WaitGroup
	const atOnce, each = 32, 60
	written, stop := context.WithCancel(ctx)
	for i := range 4 {
		writers.Go(func() {
			for written.Err() == nil {
				_, _ = c.Put(written, fmt.Sprintf("k/%d", i), "v")
			}
		})
	}
	for i := range atOnce {
		watchers.Go(func() {
			for range each {
				watching, done := context.WithCancel(ctx)
				if _, ok := <-c.Watch(watching, fmt.Sprintf("k/%d", i%4)); ok {
					told.Add(1)
				}
				done()
			}
		})
	}
	watchers.Wait()
	stop()
	writers.Wait()
	if n := told.Load(); n != atOnce*each {
		t.Errorf("%d of %d watches were told something within %s", n, atOnce*each, within)
	}
}
