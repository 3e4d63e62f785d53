package etcdlock_test

import (
	"slices"
	"testing"

	"github.com/holdfast-io/holdfast/backend/etcdlock"
)

// A transaction has one change of a lock, or one that leaves and, after it, one that joins.
func TestBatch(t *testing.T) {
	t.Parallel()
	type changes = []etcdlock.Change
	leaves, joins, alone := etcdlock.Leaves, etcdlock.Joins, etcdlock.Alone
	for _, c := range []struct{ pending, batch changes }{
		{nil, nil},
		{
			changes{{"a", joins, false}, {"b", alone, false}, {"a", leaves, false}},
			changes{{"b", alone, false}, {"a", leaves, false}, {"a", joins, false}},
		},
		{changes{{"a", joins, false}, {"a", joins, false}}, changes{{"a", joins, false}}},
		{changes{{"a", leaves, false}, {"a", leaves, false}}, changes{{"a", leaves, false}}},
		{changes{{"a", alone, false}, {"a", leaves, false}, {"a", joins, false}}, changes{{"a", alone, false}}},
		{changes{{"a", leaves, false}, {"a", alone, false}}, changes{{"a", leaves, false}}},
		{
			changes{{"a", leaves, false}, {"a", joins, false}, {"a", leaves, false}, {"a", joins, false}},
			changes{{"a", leaves, false}, {"a", joins, false}},
		},
		{
			changes{{"a", leaves, false}, {"a", joins, true}, {"a", joins, true}, {"b", joins, true}},
			changes{{"a", leaves, false}, {"a", joins, true}},
		},
		{
			changes{{"a", leaves, false}, {"a", joins, true}, {"a", joins, false}},
			changes{{"a", leaves, false}, {"a", joins, true}},
		},
		{changes{{"a", joins, false}, {"a", joins, true}}, changes{{"a", joins, false}}},
	} {
		if got := etcdlock.Batch(c.pending...); !slices.Equal(got, c.batch) {
			t.Errorf("of %v travel %v, want %v", c.pending, got, c.batch)
		}
	}
}
