package consullock_test

import (
	"errors"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// TestLostIsFinal: a lease whose loss was reported is not granted again.
func TestLostIsFinal(t *testing.T) {
	t.Parallel()
	server := consul()
	proxy := chaos.Start(t, server.Addr())
	leasetest.LostIsFinal(t, closing(t, proxy.Addr()), closing(t, server.Addr()), proxy)
}

// TestToldAfterTheNextGrant: the loss of a key is reported when the lease has another key by then.
// That one goes, too.
func TestToldAfterTheNextGrant(t *testing.T) {
	t.Parallel()
	server := consul()
	b, other := closing(t, server.Addr()), closing(t, server.Addr())
	id := session(t, b, nil)
	req := leasetest.Ask("n", id)
	leasetest.Take(t, b, req)
	client, err := api.NewClient(&api.Config{Address: server.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	notices, _, err := client.KV().List(prefixOf(t)+"/notices/", nil)
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
