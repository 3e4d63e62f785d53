package zklock_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// TestReleasedDuringTheCreate: the node that is made after the release is deleted.
func TestReleasedDuringTheCreate(t *testing.T) {
	t.Parallel()
	server := zookeeper()
	b, other := closing(t, server), closing(t, server)
	leasetest.ReleasedDuringTheCreate(t, b, other, func(id backend.SessionID) (func() bool, func()) {
		thaw := freeze(t, b, id)
		return func() bool { return b.Waiting(id) == 1 }, thaw
	})
}

// TestNoContainerIsLeft: a container that was made for a request whose outcome is not known has had an entry, so the
// ensemble collects it.
func TestNoContainerIsLeft(t *testing.T) {
	t.Parallel()
	server := testserver.StartZooKeeper(t, 1)[0]
	nodes := server.Count("zk_znode_count")
	proxy := chaos.Start(t, server.Addr())
	b := through(t, proxy)
	id := leasetest.Session(t, b, leasetest.Long, nil)
	lost := proxy.LoseReply(func(piece []byte) bool { return bytes.Contains(piece, []byte(pathOf(t)+"/locks/n")) })
	ctx, cancel := context.WithCancel(leasetest.Within(t))
	failed := make(chan error, 1)
	go func() {
		_, err := b.Acquire(ctx, leasetest.Ask("n", id))
		failed <- err
	}()
	<-lost
	cancel()
	if err := <-failed; err == nil {
		t.Error("granted without an answer")
	}
	proxy.Reset()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	const own = 4 // the path, and locks, sessions and notices in it
	leasetest.Eventually(t, "the container is collected", func() bool { return server.Count("zk_znode_count") == nodes+own })
}
