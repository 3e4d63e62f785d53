package etcdlock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
