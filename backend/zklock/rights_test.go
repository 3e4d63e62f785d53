package zklock_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/zklock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// quiet drops what the client library of the test logs.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// The ACL that the page gives to paste is enough for the whole suite. Without it, and for another user,
// doctor and the first request that needs it name what is missing.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	server := testserver.StartZooKeeper(t, 1)[0]
	admin, events, err := zk.Connect([]string{server.Addr()}, time.Minute, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		admin.Close()
		for range events { // until the library has ended
		}
	})
	var login, path, acl string
	for line := range strings.Lines(leasetest.Rights(t, "zookeeper.md")[0]) {
		words := strings.Fields(line)
		switch words[0] {
		case "addauth":
			login = words[2]
			err = admin.AddAuth(words[1], []byte(login))
		case "create":
			path = words[1]
			_, err = admin.Create(path, nil, 0, zk.WorldACL(zk.PermAll))
		case "setAcl":
			acl = strings.TrimPrefix(words[2], "auth:"+login+":")
		default:
			t.Fatalf("%s", line)
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	open := func(ctx context.Context, login string) (*zklock.Backend, error) {
		url := "zookeeper://" + login + "@" + server.Addr() + path
		return zklock.Open(ctx, url, zklock.Config{Tick: testserver.ZooKeeperTick, MaxSession: testserver.ZooKeeperMaxSession})
	}
	as := func(login string) *zklock.Backend {
		b, err := open(t.Context(), login)
		return leasetest.Opened(t, b, err)
	}
	allow := func(perms string) {
		var all int32
		for i, p := range "rwcda" {
			if strings.ContainsRune(perms, p) {
				all |= 1 << i
			}
		}
		user, password, _ := strings.Cut(login, ":")
		acl := slices.Concat(zk.DigestACL(all, user, password), zk.DigestACL(zk.PermAdmin, "admin", "of the test"))
		if _, err := admin.SetACL(path, acl, -1); err != nil {
			t.Fatal(err)
		}
	}
	if err := admin.AddAuth("digest", []byte("admin:of the test")); err != nil {
		t.Fatal(err)
	}
	allow("")
	leasetest.Refuses(t, as(login), "to create nodes (c) below "+path)
	allow(acl)
	leasetest.Suffices(t, as(login))
	leasetest.Refuses(t, as("somebody:else"), "(crwd) below "+path)
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := open(t.Context(), login)
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		Restart:    func(backendtest.T) { server.Restart() },
		NoSlowDisk: "TestConformance has the same server on one",
		Holders:    leasetest.Holders(500), // each acquire lists the queue
	})
}
