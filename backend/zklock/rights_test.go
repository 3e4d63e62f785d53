package zklock_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend/zklock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// quiet drops what the client library of the test logs.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// Without the ACL that the page gives to paste, and for another user, doctor and the first request that needs it name what
// is missing. The suite runs with this ACL, too.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	r := leastRights(t, zookeeper())
	as := func(login string) *zklock.Backend {
		b, err := r.open(t.Context(), login)
		return leasetest.Opened(t, b, err)
	}
	r.allow(t, "")
	leasetest.Refuses(t, as(r.login), "to create nodes (c) below "+r.path)
	r.allow(t, r.acl)
	leasetest.Suffices(t, as(r.login))
	leasetest.Refuses(t, as("somebody:else"), "(crwd) below "+r.path)
}

// rights are what the page gives to paste.
type rights struct {
	server           *testserver.ZooKeeperServer
	admin            *zk.Conn
	login, path, acl string
}

// leastRights makes the node of the page.
func leastRights(t *testing.T, server *testserver.ZooKeeperServer) *rights {
	t.Helper()
	r := &rights{server: server}
	admin, events, err := zk.Connect([]string{server.Addr()}, time.Minute, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	r.admin = admin
	t.Cleanup(func() {
		admin.Close()
		for range events { // until the library has ended
		}
	})
	for line := range strings.Lines(leasetest.Rights(t, "zookeeper.md")[0]) {
		words := strings.Fields(line)
		switch words[0] {
		case "addauth":
			r.login = words[2]
			err = admin.AddAuth(words[1], []byte(r.login))
		case "create":
			r.path = words[1]
			_, err = admin.Create(r.path, nil, 0, zk.WorldACL(zk.PermAll))
		case "setAcl":
			r.acl = strings.TrimPrefix(words[2], "auth:"+r.login+":")
		default:
			t.Fatalf("%s", line)
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	if err := admin.AddAuth("digest", []byte("admin:of the test")); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rights) open(ctx context.Context, login string) (*zklock.Backend, error) {
	url := "zookeeper://" + login + "@" + r.server.Addr() + r.path
	return zklock.Open(ctx, url, zklock.Config{Tick: testserver.ZooKeeperTick, MaxSession: testserver.ZooKeeperMaxSession})
}

// allow gives the user these permissions on the node, and no others.
func (r *rights) allow(t *testing.T, perms string) {
	t.Helper()
	var all int32
	for i, p := range "rwcda" {
		if strings.ContainsRune(perms, p) {
			all |= 1 << i
		}
	}
	user, password, _ := strings.Cut(r.login, ":")
	acl := slices.Concat(zk.DigestACL(all, user, password), zk.DigestACL(zk.PermAdmin, "admin", "of the test"))
	if _, err := r.admin.SetACL(r.path, acl, -1); err != nil {
		t.Fatal(err)
	}
}
