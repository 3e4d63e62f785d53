package backend_test

import (
	"slices"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
)

func claimsOf(kinds string) []backend.Claim {
	var cs []backend.Claim
	for _, k := range kinds {
		switch k {
		case 'x':
			cs = append(cs, backend.Claim{Mode: backend.Exclusive, Permits: 1})
		case 'r':
			cs = append(cs, backend.Claim{Mode: backend.Shared, Permits: 1})
		default: // permits of three
			cs = append(cs, backend.Claim{Mode: backend.Shared, Limit: 3, Permits: int(k - '0')})
		}
	}
	return cs
}

func TestFront(t *testing.T) {
	t.Parallel()
	for queue, out := range map[string]int{"": 0, "x": 1, "xx": 1, "rr": 2, "rrxr": 2, "xr": 1, "111": 3, "1111": 3, "221": 1, "12": 2} {
		f := backend.FrontOf(claimsOf(queue))
		if f.Out != out {
			t.Errorf("%q: %d out, want %d", queue, f.Out, out)
		}
		for _, c := range claimsOf("xr") {
			if got, want := f.Admits(c), backend.FrontOf(append(slices.Clone(f.Claims), c)).Out == len(queue)+1; got != want && queue != "111" {
				t.Errorf("%q: admits %+v: %t, want %t", queue, c, got, want)
			}
		}
	}
	f := backend.FrontOf(claimsOf("rxrrx"))
	for i, want := range map[int]int{1: 0, 2: 1, 3: 1, 4: 3} {
		if got, ok := f.Blocker(i); got != want || !ok {
			t.Errorf("%d waits for %d, %t; want %d", i, got, ok, want)
		}
	}
	if j, ok := backend.FrontOf(claimsOf("22")).Blocker(1); ok {
		t.Errorf("who waits for permits waits for %d only", j)
	}
}

func FuzzSegment(f *testing.F) {
	for _, s := range []string{"order:123", "a/b", "é", "%41", "%", "a%2", "zookeeper", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		seg := backend.EscapeSegment(s)
		if back, ok := backend.UnescapeSegment(seg); !ok || back != s {
			t.Errorf("%q is the segment %q, which is %q, %t", s, seg, back, ok)
		}
		for i := range len(seg) {
			if c := seg[i : i+1]; backend.EscapeSegment(c) != c && c != "%" {
				t.Errorf("%q is the segment %q", s, seg)
			}
		}
	})
}

func TestDecisive(t *testing.T) {
	t.Parallel()
	f := backend.FrontOf(claimsOf("xrrrx"))
	for _, c := range []struct{ i, most, from int }{{4, 60, 3}, {3, 60, 0}, {3, 2, 1}, {1, 1, 0}} {
		if got := f.Decisive(c.i, c.most); got != c.from {
			t.Errorf("%d, %d at the most: from %d, want %d", c.i, c.most, got, c.from)
		}
	}
}
