package etcdlock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
