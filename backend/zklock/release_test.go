package zklock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// TestReleasedDuringTheCreate: the node that is made after the release is deleted.
func TestReleasedDuringTheCreate(t *testing.T) {
	t.Parallel()
	server := testserver.StartZooKeeper(t, 1)[0]
	b, other := closing(t, server), closing(t, server)
	leasetest.ReleasedDuringTheCreate(t, b, other, func(id backend.SessionID) (func() bool, func()) {
		thaw := b.Freeze(id)
		return func() bool { return b.Waiting(id) == 1 }, thaw
	})
}

// TestUnknownRelease: the lease of a release without an answer stays known.
func TestUnknownRelease(t *testing.T) {
	t.Parallel()
	server := testserver.StartZooKeeper(t, 1)[0]
	b, cut := cutting(t, server, "")
	leasetest.UnknownRelease(t, b, closing(t, server), func() { cut.down.Store(true) }, func() { cut.down.Store(false) })
}
