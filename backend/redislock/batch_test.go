package redislock_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// TestBatches: what many operations do in one execution, most of them by the short way or
// the middle way, is what they do one after the other by the long way.
func TestBatches(t *testing.T) {
	t.Parallel()
	inBothForms(t, batches)
}

func batches(t *testing.T, args ...string) {
	t.Helper()
	s, _ := quick(t, args...)
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			// The same server; the answers and what is on record are compared, but for
			// times and tokens.
			open := func(prefix string) *redislock.Backend {
				return open(t, s, redislock.Config{Prefix: fmt.Sprint(prefix, "-", seed), Quarantine: redislock.NoQuarantine})
			}
			together, apart := open("together"), open("apart")
			// Where somebody watches, everything goes the long way.
			s.Do("SET", fmt.Sprintf("{apart-%d0}:v", seed), "1")
			g := generator{Rand: rand.New(rand.NewPCG(seed, 1))}
			opening := [][]string{{"session.open", "session-0", "3600000", ""}, {"session.open", "session-1", "3600000", ""}}
			compare(t, s, together, apart, opening)
			for range 100 {
				compare(t, s, together, apart, g.batch())
			}
			compare(t, s, together, apart, [][]string{{"session.end", "session-0"}})
		})
	}
}

func compare(t *testing.T, s *testserver.RedisServer, together, apart *redislock.Backend, ops [][]string) {
	t.Helper()
	one, err := together.Exec(t.Context(), true, ops)
	if err != nil {
		t.Fatal(err)
	}
	each, err := apart.Exec(t.Context(), false, ops)
	if err != nil {
		t.Fatal(err)
	}
	for i, op := range ops {
		if a, b := redislock.Words(one[i]), redislock.Words(each[i]); a != b {
			t.Fatalf("operation %d of %d, %q: together %q, apart %q", i, len(ops), op, a, b)
		}
	}
	if a, b := onRecord(t, s, together), onRecord(t, s, apart); a != b {
		t.Fatalf("after %q:\n%s\nand apart:\n%s", ops, a, b)
	}
}

// onRecord is who has what and who waits, without times and tokens, and how much every key
// holds.
func onRecord(t *testing.T, s *testserver.RedisServer, b *redislock.Backend) string {
	t.Helper()
	page, err := b.List(t.Context(), backend.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, l := range page.Locks {
		fmt.Fprintf(&text, "%s limit %d", l.Name, l.Limit)
		slices.SortFunc(l.Holders, func(a, b backend.Holder) int { return strings.Compare(string(a.Lease), string(b.Lease)) })
		for _, h := range l.Holders {
			if h.Token > l.Token || h.Left <= 0 {
				t.Errorf("%s: %+v, and the last token is %d", l.Name, h, l.Token)
			}
			fmt.Fprintf(&text, " %s/%s/%s/%s/%d", h.Lease, h.Session, h.Owner, h.Mode, h.Permits)
		}
		for _, w := range l.Waiters {
			fmt.Fprintf(&text, " <- %s/%s/%s/%s/%d", w.Lease, w.Session, w.Owner, w.Mode, w.Permits)
		}
		text.WriteByte('\n')
	}
	keys, _ := s.Do("KEYS", b.Tag()+"*").([]any)
	sizes := make([]string, 0, len(keys))
	for _, k := range keys {
		key := fmt.Sprint(k)
		size := any("there")
		switch s.Do("TYPE", key) {
		case "hash":
			size = s.Do("HLEN", key)
		case "zset":
			size = s.Do("ZCARD", key)
		}
		if key = strings.TrimPrefix(key, b.Tag()); key != "v" {
			sizes = append(sizes, fmt.Sprintf("%s %v", key, size))
		}
	}
	slices.Sort(sizes)
	return text.String() + strings.Join(sizes, "\n")
}

// generator makes operations of every kind on few locks.
type generator struct{ *rand.Rand }

func (g generator) batch() [][]string {
	ops := make([][]string, 1+g.IntN(12))
	for i := range ops {
		ops[i] = g.op()
	}
	return ops
}

func (g generator) one(of ...string) string { return of[g.IntN(len(of))] }

func (g generator) op() []string {
	name := fmt.Sprint("lock", g.IntN(4))
	lease := fmt.Sprint("lease", g.IntN(5), "-", name) // few, so that what is asked for is often there
	if g.IntN(20) == 0 {
		lease = "lease0-lock0"
	}
	session := fmt.Sprint("session-", g.IntN(2))
	switch g.IntN(12) {
	case 0, 1, 2, 3:
		return []string{"release", g.one("0", "0", "0", "1", "2"), session, name, lease}
	case 4:
		return []string{"renew", session, "0", "1", name, lease, "7200000"}
	case 5:
		return []string{"check", name, "1", lease, session}
	case 6:
		return []string{"break", name, "why"}
	}
	mode, limit, permits := "x", "0", "1"
	if g.IntN(3) == 0 {
		mode = "s"
		limit = g.one("0", "3")
		permits = g.one("1", "2")
	}
	if g.IntN(8) == 0 {
		session = "no-such-session"
	}
	ttl, wait := g.one("0", "0", "600000"), g.one("0", "0", "1")
	if limit == "0" {
		permits = "1"
	}
	channel := ""
	if wait == "1" {
		channel = "c"
	}
	return []string{
		"acquire", session, ttl, limit, g.one("0", "0", "0", "1"), wait, mode, permits, channel,
		g.one("", "ann", "ann", "0"), g.one("note", "", ""), name, lease,
	}
}
