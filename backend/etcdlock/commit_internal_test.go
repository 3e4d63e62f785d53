package etcdlock

import (
	"slices"
	"testing"
)

// A transaction has one change of a lock, or one that leaves and, after it, one that joins.
func TestBatch(t *testing.T) {
	t.Parallel()
	type one struct {
		lock  string
		kind  kind
		rides bool
	}
	type changes = []one
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
		w := &committer{running: true}
		for _, p := range c.pending {
			queue := &w.pending
			if p.rides {
				queue = &w.riders
			}
			*queue = append(*queue, &change{name: p.lock, kind: p.kind, rides: p.rides})
		}
		var got changes
		for _, p := range w.take() {
			got = append(got, one{p.name, p.kind, p.rides})
		}
		if !slices.Equal(got, c.batch) {
			t.Errorf("of %v travel %v, want %v", c.pending, got, c.batch)
		}
	}
}
