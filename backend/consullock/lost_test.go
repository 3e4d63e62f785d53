package consullock_test

import (
	"errors"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// TestToldAfterTheNextGrant: the loss of a key is reported when the lease has another key by then.
// That one goes, too.
func TestToldAfterTheNextGrant(t *testing.T) {
	t.Parallel()
	server := consul()
	b, other := closing(t, server.Addr()), closing(t, server.Addr())
	id := session(t, b, nil)
	req := leasetest.Ask("n", id)
	leasetest.Take(t, b, req)
	operator := client(t, server.Addr())
	notices, _, err := operator.KV().List(prefixOf(t)+"/notices/", nil)
	if err != nil || len(notices) != 1 {
		t.Fatalf("%d sessions have notices, %v; want one", len(notices), err)
	}
	notices[0].Value = []byte(`[{"l":"` + string(req.Lease) + `"}]`)
	if _, err := operator.KV().Put(notices[0], nil); err != nil {
		t.Fatal(err)
	}
	leasetest.Take(t, other, leasetest.Ask("n", session(t, other, nil)))
	if g, err := b.Acquire(leasetest.Within(t), req); !errors.Is(err, backend.ErrLost) {
		t.Errorf("%+v, %v; want ErrLost", g, err)
	}
}
