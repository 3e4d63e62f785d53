package e2e_test

import (
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/chaos"
)

// B10: a lease counts from before the request was sent. However late the answer comes, the
// count on this side began no later than the one on the server.
func TestLeaseCountsFromTheQuestion(t *testing.T) {
	t.Parallel()
	const late = 400 * time.Millisecond
	for name, start := range networks() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, open := start(t)
			proxy := chaos.Start(t, addr)
			b := open(t, proxy.Addr())
			t.Cleanup(func() { _ = b.Close() })
			caps := b.Capabilities()
			req := backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Timed: caps.Timed}
			if caps.Timed {
				req.TTL = max(10*time.Second, caps.MinTTL)
			} else {
				req.Session = backend.NewSessionID()
				if err := b.OpenSession(t.Context(), backend.SessionRequest{ID: req.Session, TTL: max(10*time.Second, caps.MinTTL)}); err != nil {
					t.Fatal(err)
				}
			}
			// The connection is established when the delay begins.
			if _, err := b.Inspect(t.Context(), "n"); err != nil {
				t.Fatal(err)
			}
			proxy.Delay(chaos.Replies, late, 0)
			g, err := b.Acquire(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if age := time.Since(g.Asked); age < late {
				t.Errorf("the lease counts from %s ago, and the answer took %s", age, late)
			}
		})
	}
}
