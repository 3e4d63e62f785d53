package etcdlock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// shortest is the TTL of the suite. Unlike etcd's TTLs it is not in whole seconds.
const shortest = 1300 * time.Millisecond

// open returns a backend on the servers, as another process would have one.
func open(t backendtest.T, members []*testserver.Etcd) *etcdlock.Backend {
	t.Helper()
	return openURL(t, "etcd://"+strings.Join(testserver.Endpoints(members), ",")+"?min_ttl=1s&timeout=30s")
}

func openURL(t backendtest.T, url string) *etcdlock.Backend {
	t.Helper()
	b, err := etcdlock.Open(t.Context(), url, etcdlock.Config{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return b
}

// etcd starts one of Debian's version, without syncs of its disk: what is not said to need another version needs none.
func etcd(t *testing.T) []*testserver.Etcd {
	t.Helper()
	return testserver.StartEtcd(t, testserver.EtcdOptions{NoFsync: true})
}

// TestConformance runs the suite on Debian's etcd, as a user with the role that the page gives to paste.
func TestConformance(t *testing.T) {
	t.Parallel()
	member, disk := testserver.WithSlowDisk(t, testserver.StartEtcd(t, testserver.EtcdOptions{})[0])
	url, _ := leastRights(t, member)
	backendtest.Run(t, backendtest.Harness{
		Open:     func(t backendtest.T) backend.Backend { return openURL(t, url+"&timeout=30s") },
		Restart:  func(backendtest.T) { member.Restart() },
		SlowDisk: func(backendtest.T) func() { disk.Slow(testserver.SlowSync); return disk.Fast },
		TTL:      shortest,
		Holders:  leasetest.Holders(1000), // all are in the queue that each acquire reads
	})
}
