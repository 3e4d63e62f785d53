package consullock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestRefusalsAreTrue(t *testing.T) {
	t.Parallel()
	s := testserver.StartConsul(t, 1)[0]
	leasetest.RefusalsAreTrue(t, 600, closing(t, s.Addr()), closing(t, s.Addr()), closing(t, s.Addr()), closing(t, s.Addr()))
}
