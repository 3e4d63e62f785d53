package zklock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

func TestRefusalsAreTrue(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := zookeeper()
	leasetest.RefusalsAreTrue(t, 1000, closing(t, s), closing(t, s), closing(t, s), closing(t, s))
}
