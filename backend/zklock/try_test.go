package zklock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestRefusalsAreTrue(t *testing.T) {
	t.Parallel()
	s := testserver.StartZooKeeper(t, 1)[0]
	leasetest.RefusalsAreTrue(t, 1000, closing(t, s), closing(t, s), closing(t, s), closing(t, s))
}
