package etcdlock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
)

// keysBelow returns the keys of one kind: "q" for entries, "c" for claims.
func keysBelow(t *testing.T, c *clientv3.Client, kind string) []string {
	t.Helper()
	resp, err := c.Get(t.Context(), etcdlock.DefaultPrefix+"/"+kind+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, kv := range resp.Kvs {
		keys = append(keys, strings.TrimPrefix(string(kv.Key), etcdlock.DefaultPrefix+"/"+kind+"/"))
	}
	return keys
}

// The first entry of a queue has no claim. It is still granted only once, whichever client is asked
// and whatever came after it, and every client that is to release it finds it.
func TestHeadIsGrantedOnce(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	b, other, c := direct(t, members), direct(t, members), raw(t, members)
	s := kept(t, b)
	first := request("lock", s)
	g, err := b.Acquire(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	if entries, claims := keysBelow(t, c, "q"), keysBelow(t, c, "c"); len(entries) != 1 || len(claims) != 0 {
		t.Fatalf("the first made the entries %q and the claims %q", entries, claims)
	}
	again := func(what string, entries int) {
		t.Helper()
		for _, wait := range []bool{false, true} {
			req := first
			req.Wait = wait
			for _, from := range []*etcdlock.Backend{b, other} {
				if r := receive(t, start(t.Context(), from, req)); r.err != nil || r.grant.Token != g.Token {
					t.Fatalf("%s, wait %v: %+v, %v; it has token %d", what, wait, r.grant, r.err, g.Token)
				}
			}
		}
		if got := keysBelow(t, c, "q"); len(got) != entries {
			t.Fatalf("%s: entries %q", what, got)
		}
	}
	again("alone", 1)
	next := request("lock", s)
	waits := start(t.Context(), other, next)
	await(t, "in the queue", func() bool { return other.Waiting("lock") == 1 })
	again("before another", 2)
	// This client looks for the entry without having made it.
	third := direct(t, members)
	if err := third.Release(t.Context(), backend.ReleaseRequest{Name: first.Name, Lease: first.Lease}); err != nil {
		t.Fatal(err)
	}
	r := receive(t, waits)
	if r.err != nil || r.grant.Token <= g.Token {
		t.Fatalf("the next: %+v, %v", r.grant, r.err)
	}
	err = third.Release(t.Context(), backend.ReleaseRequest{Name: first.Name, Lease: first.Lease})
	if !errors.Is(err, backend.ErrLost) {
		t.Errorf("released again: %v", err)
	}
	release(t, other, next)
	if entries, claims := keysBelow(t, c, "q"), keysBelow(t, c, "c"); len(entries)+len(claims) != 0 {
		t.Errorf("left: entries %q, claims %q", entries, claims)
	}
}

// A lease that waits has a claim, and does not go to the head when that is free.
func TestInQueueIsGrantedOnce(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	b, other, c := direct(t, members), direct(t, members), raw(t, members)
	s := kept(t, b)
	holder, waiter := request("lock", s), request("lock", s)
	if _, err := b.Acquire(t.Context(), holder); err != nil {
		t.Fatal(err)
	}
	waits := start(t.Context(), b, waiter)
	await(t, "in the queue", func() bool { return b.Waiting("lock") == 1 })
	also := start(t.Context(), other, waiter)
	await(t, "in the queue", func() bool { return other.Waiting("lock") == 1 })
	if entries, claims := keysBelow(t, c, "q"), keysBelow(t, c, "c"); len(entries) != 2 || len(claims) != 1 {
		t.Fatalf("entries %q, claims %q", entries, claims)
	}
	release(t, b, holder)
	one, two := receive(t, waits), receive(t, also)
	if one.err != nil || two.err != nil || one.grant.Token != two.grant.Token {
		t.Fatalf("%+v, %v and %+v, %v", one.grant, one.err, two.grant, two.err)
	}
	release(t, other, waiter)
	req := request("lock", s)
	req.Timed, req.TTL = true, time.Minute
	if _, err := b.Acquire(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if got, err := other.Acquire(t.Context(), req); err != nil || got.Left > time.Minute {
		t.Fatalf("a timed one again: %+v, %v", got, err)
	}
	if entries := keysBelow(t, c, "q"); len(entries) != 1 {
		t.Errorf("entries %q", entries)
	}
}
