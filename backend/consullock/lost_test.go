package consullock_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// TestLostIsFinal: the reply to an acquire is lost, and an operator breaks the lease. Once the loss
// was reported, the same lease is not granted again: a second break of it would not be reported.
func TestLostIsFinal(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t, 1)[0]
	proxy := chaos.Start(t, server.Addr())
	b, other := closing(t, proxy.Addr()), closing(t, server.Addr())
	told := make(chan backend.Loss, 10)
	id := session(t, b, func(l backend.Loss) { told <- l })
	req := leasetest.Ask("n", id)
	lost := proxy.LoseReply(func(piece []byte) bool { return bytes.Contains(piece, []byte(req.Lease)) })
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() {
		_, err := b.Acquire(ctx, req)
		answered <- err
	}()
	<-lost
	leasetest.Eventually(t, "the lease is held", func() bool {
		info, err := other.Inspect(leasetest.Within(t), "n")
		return err == nil && len(info.Holders) == 1
	})
	cancel()
	if err := <-answered; !errors.Is(err, backend.ErrUnavailable) {
		t.Fatalf("acquire without a reply: %v", err)
	}
	if res, err := other.Break(leasetest.Within(t), backend.BreakRequest{Name: "n"}); err != nil || len(res.Broken) != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
	proxy.Reset()
	if l := <-told; l.Lease != req.Lease {
		t.Fatalf("told %+v", l)
	}
	for range 3 {
		if g, err := b.Acquire(leasetest.Within(t), req); !errors.Is(err, backend.ErrLost) {
			t.Fatalf("the lease that was reported as lost: %+v, %v; want ErrLost", g, err)
		}
	}
	leasetest.Take(t, other, leasetest.Ask("n", session(t, other, nil)))
}

// TestToldAfterTheNextGrant: the loss of a key is reported when the lease has another key by then.
// That one goes, too.
func TestToldAfterTheNextGrant(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t, 1)[0]
	b, other := closing(t, server.Addr()), closing(t, server.Addr())
	id := session(t, b, nil)
	req := leasetest.Ask("n", id)
	leasetest.Take(t, b, req)
	client, err := api.NewClient(&api.Config{Address: server.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	notices, _, err := client.KV().List("holdfast/notices/", nil)
	if err != nil || len(notices) != 1 {
		t.Fatalf("%d sessions have notices, %v; want one", len(notices), err)
	}
	notices[0].Value = []byte(`[{"l":"` + string(req.Lease) + `"}]`)
	if _, err := client.KV().Put(notices[0], nil); err != nil {
		t.Fatal(err)
	}
	leasetest.Take(t, other, leasetest.Ask("n", session(t, other, nil)))
	if g, err := b.Acquire(leasetest.Within(t), req); !errors.Is(err, backend.ErrLost) {
		t.Errorf("%+v, %v; want ErrLost", g, err)
	}
}
