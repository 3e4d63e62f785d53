package backend_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
)

var (
	exclusive = backend.Claim{Mode: backend.Exclusive, Permits: 1}
	reader    = backend.Claim{Mode: backend.Shared, Permits: 1}
)

func permits(limit, k int) backend.Claim {
	return backend.Claim{Mode: backend.Shared, Limit: limit, Permits: k}
}

func TestFits(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name  string
		claim backend.Claim
		out   []backend.Claim
		want  bool
	}{
		{"exclusive, free", exclusive, nil, true},
		{"reader, free", reader, nil, true},
		{"all permits, free", permits(3, 3), nil, true},
		{"exclusive under exclusive", exclusive, []backend.Claim{exclusive}, false},
		{"exclusive under reader", exclusive, []backend.Claim{reader}, false},
		{"exclusive under permit", exclusive, []backend.Claim{permits(3, 1)}, false},
		{"reader under exclusive", reader, []backend.Claim{exclusive}, false},
		{"permit under exclusive", permits(3, 1), []backend.Claim{exclusive}, false},
		{"reader under many readers", reader, []backend.Claim{reader, reader, reader}, true},
		{"last permit", permits(3, 1), []backend.Claim{permits(3, 2)}, true},
		{"one permit too many", permits(3, 1), []backend.Claim{permits(3, 2), permits(3, 1)}, false},
		{"two permits where one is left", permits(3, 2), []backend.Claim{permits(3, 2)}, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			if got := x.claim.Fits(x.out); got != x.want {
				t.Errorf("%+v.Fits(%+v) = %v", x.claim, x.out, got)
			}
		})
	}
}

func TestAdmit(t *testing.T) {
	t.Parallel()
	type claims = []backend.Claim
	for _, x := range []struct {
		name       string
		out, queue claims
		want       int
	}{
		{"no waiters", nil, nil, 0},
		{"free", nil, claims{exclusive, exclusive}, 1},
		{"held", claims{exclusive}, claims{reader}, 0},
		{"readers up to the writer", nil, claims{reader, reader, exclusive, reader}, 2},
		{"a reader behind a writer stays", claims{reader}, claims{exclusive, reader}, 0},
		{"a reader joins readers", claims{reader}, claims{reader, exclusive}, 1},
		{"permits until one does not fit", claims{permits(4, 1)}, claims{permits(4, 2), permits(4, 2), permits(4, 1)}, 1},
		{"the head does not fit", claims{permits(4, 2)}, claims{permits(4, 3), permits(4, 1)}, 0},
		{"all", nil, claims{permits(3, 1), permits(3, 1), permits(3, 1)}, 3},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			if got := backend.Admit(x.out, x.queue); got != x.want {
				t.Errorf("Admit = %d, want %d", got, x.want)
			}
		})
	}
}

// TestAdmitProperties checks Admit against its definition on random queues: what it admits is
// compatible with the holders, one by one, and the next does not fit; and it leaves its arguments
// unchanged.
func TestAdmitProperties(t *testing.T) {
	t.Parallel()
	const limit = 4
	random := func() backend.Claim {
		if rand.IntN(4) == 0 {
			return exclusive
		}
		return permits(limit, 1+rand.IntN(limit))
	}
	for range 20_000 {
		out := make([]backend.Claim, 0, 8)
		for range rand.IntN(4) {
			if c := random(); c.Fits(out) {
				out = append(out, c)
			}
		}
		queue := make([]backend.Claim, rand.IntN(6))
		for i := range queue {
			queue[i] = random()
		}
		spare := out[:cap(out)]
		for i := len(out); i < len(spare); i++ {
			spare[i] = backend.Claim{Limit: -1}
		}
		n := backend.Admit(out, queue)
		for i := len(out); i < len(spare); i++ {
			if spare[i].Limit != -1 {
				t.Fatalf("Admit wrote into the caller's slice: %+v", spare)
			}
		}
		now := append([]backend.Claim(nil), out...)
		for _, c := range queue[:n] {
			if !c.Fits(now) {
				t.Fatalf("Admit(%+v, %+v) = %d admits what does not fit", out, queue, n)
			}
			now = append(now, c)
		}
		if n < len(queue) && queue[n].Fits(now) {
			t.Fatalf("Admit(%+v, %+v) = %d stops at one that fits", out, queue, n)
		}
		compatible(t, now, limit)
	}
}

// compatible is C1, written in another way.
func compatible(t *testing.T, out []backend.Claim, limit int) {
	t.Helper()
	exclusives, taken := 0, 0
	for _, c := range out {
		if c.Mode == backend.Exclusive {
			exclusives++
		} else {
			taken += c.Permits
		}
	}
	if exclusives > 1 || exclusives == 1 && taken > 0 || taken > limit {
		t.Fatalf("not compatible: %+v", out)
	}
}

func TestLimitInForce(t *testing.T) {
	t.Parallel()
	type claims = []backend.Claim
	for _, x := range []struct {
		name       string
		out, queue claims
		want       int
		ok         bool
	}{
		{"nobody", nil, nil, 0, false},
		{"exclusive has no opinion", claims{exclusive}, claims{exclusive}, 0, false},
		{"a holder", claims{permits(3, 1)}, nil, 3, true},
		{"readers: no limit is a limit", claims{reader}, nil, 0, true},
		{"a waiter", claims{exclusive}, claims{exclusive, permits(5, 2)}, 5, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			if got, ok := backend.LimitInForce(x.out, x.queue); got != x.want || ok != x.ok {
				t.Errorf("LimitInForce = %d, %v", got, ok)
			}
		})
	}
}

// TestInfoLimit: an exclusive holder is a limit of 1, and an exclusive waiter is none.
func TestInfoLimit(t *testing.T) {
	t.Parallel()
	type claims = []backend.Claim
	for _, x := range []struct {
		name          string
		held, waiting claims
		want          int
	}{
		{"a free lock", nil, nil, 0},
		{"an exclusive lease is held", claims{exclusive}, claims{permits(3, 1)}, 1},
		{"an exclusive lease may be held behind shared ones, of which a node has not answered", claims{permits(3, 1), exclusive}, nil, 1},
		{"an exclusive lease waits", claims{permits(3, 1)}, claims{exclusive}, 3},
		{"only a waiter has a limit", nil, claims{exclusive, permits(3, 1)}, 3},
		{"readers", claims{reader}, claims{exclusive}, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			if got := backend.InfoLimit(x.held, x.waiting); got != x.want {
				t.Errorf("%d, want %d", got, x.want)
			}
		})
	}
}

// TestCheckLimit: a shared claim names the limit in force, an exclusive one none, and the first shared lease decides.
func TestCheckLimit(t *testing.T) {
	t.Parallel()
	type claims = []backend.Claim
	for _, x := range []struct {
		name       string
		claim      backend.Claim
		out, queue claims
		want       int // the limit in force that the error names; -1: no error
	}{
		{"a free lock", permits(3, 1), nil, nil, -1},
		{"the same", permits(3, 1), claims{permits(3, 2)}, nil, -1},
		{"another", permits(3, 1), claims{permits(4, 1)}, nil, 4},
		{"of a waiter", permits(3, 1), claims{exclusive}, claims{exclusive, permits(4, 1)}, 4},
		{"the holder's first", permits(3, 1), claims{permits(3, 1)}, claims{permits(4, 1)}, -1},
		{"none, and readers", permits(3, 1), claims{reader}, nil, 0},
		{"a reader among readers", reader, claims{reader}, nil, -1},
		{"a reader of a semaphore", reader, claims{permits(2, 1)}, nil, 2},
		{"only exclusive ones", permits(3, 1), claims{exclusive}, claims{exclusive}, -1},
		{"exclusive", exclusive, claims{permits(4, 1)}, nil, -1},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			err := x.claim.CheckLimit("n", x.out, x.queue)
			if x.want < 0 {
				if err != nil {
					t.Errorf("%v", err)
				}
				return
			}
			var is *backend.LimitError
			if want := (backend.LimitError{Name: "n", Asked: x.claim.Limit, InForce: x.want}); !errors.As(err, &is) || *is != want {
				t.Errorf("%v, want %v", err, &want)
			}
		})
	}
}
