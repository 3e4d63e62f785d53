package consullock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

func TestRefusalsAreTrue(t *testing.T) {
	t.Parallel()
	s := consul()
	leasetest.RefusalsAreTrue(t, 600, closing(t, s.Addr()), closing(t, s.Addr()), closing(t, s.Addr()), closing(t, s.Addr()))
}
