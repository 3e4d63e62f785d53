package redislock_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// TestBatches: many operations in one execution, most of them by the short way,
// have the same result as one after the other by the long way.
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
			// The same server; the answers and the records are compared, except for times and
			// tokens.
			open := func(prefix string) *redislock.Backend {
				return open(t, s, redislock.Config{Prefix: fmt.Sprint(prefix, "-", seed), Quarantine: redislock.NoQuarantine})
			}
			together, apart := open("together"), open("apart")
			// With a watcher, everything takes the long way.
			s.Do("SET", fmt.Sprintf("{apart-%d0}:v", seed), "1")
			g := &generator{Rand: rand.New(rand.NewPCG(seed, 1)), granted: make(map[string]int64), asked: make(map[string][]string)}
			opening := [][]string{{"session.open", "session-0", "3600000", ""}, {"session.open", "session-1", "3600000", ""}}
			g.compare(t, together, apart, opening)
			for i := range 100 {
				g.compare(t, together, apart, g.batch())
				if i%7 == 6 { // this makes the records of both alike
					g.compareRecords(t, s, together, apart)
				}
			}
			g.compare(t, together, apart, [][]string{{"session.end", "session-0"}})
			g.compareRecords(t, s, together, apart)
		})
	}
}

func (g *generator) compare(t *testing.T, together, apart *redislock.Backend, ops [][]string) {
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
		g.note(op, one[i])
	}
}

// note records the tokens that leases were granted with immediately.
func (g *generator) note(op []string, answer []redislock.Reply) {
	if op[0] != "acquire" && op[0] != "release" {
		return
	}
	at := strings.Join(op[len(op)-2:], "/")
	delete(g.granted, at)
	if redislock.Word(answer) == "G" {
		g.granted[at] = redislock.Number(answer[1])
	}
}

func (g *generator) compareRecords(t *testing.T, s *testserver.RedisServer, together, apart *redislock.Backend) {
	t.Helper()
	for _, b := range []*redislock.Backend{together, apart} {
		if found := contradictions(t, s, b, ""); len(found) > 0 {
			t.Fatalf("the records contradict each other: %v", found)
		}
	}
	if a, b := onRecord(t, s, together, g.granted), onRecord(t, s, apart, nil); a != b {
		t.Fatalf("together:\n%s\nand apart:\n%s", a, b)
	}
}

// contradictions returns what the records of the Backend contradict each other in. jumped: see testdata/records.lua.
func contradictions(t *testing.T, s *testserver.RedisServer, b *redislock.Backend, jumped string) []any {
	t.Helper()
	program, err := os.ReadFile("testdata/records.lua")
	if err != nil {
		t.Fatal(err)
	}
	found, ok := s.Do("EVAL", string(program), "0", b.Tag(), jumped).([]any)
	if !ok {
		t.Fatal("the answer is no list")
	}
	return found
}

// sizesOf returns each key with its size.
const sizesOf = `local sizes = {}
for i, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local size = ({hash = 'HLEN', zset = 'ZCARD'})[redis.call('TYPE', key).ok]
  sizes[i] = key .. ' ' .. (size and redis.call(size, key) or 'there')
end
return sizes`

// onRecord returns the holders and waiters, without times and tokens, and the size of every
// key.
func onRecord(t *testing.T, s *testserver.RedisServer, b *redislock.Backend, granted map[string]int64) string {
	t.Helper()
	page, err := b.List(t.Context(), backend.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, l := range page.Locks {
		inflate(t, b, l.Name)
		fmt.Fprintf(&text, "%s limit %d", l.Name, l.Limit)
		slices.SortFunc(l.Holders, func(a, b backend.Holder) int { return strings.Compare(string(a.Lease), string(b.Lease)) })
		for _, h := range l.Holders {
			if h.Token > l.Token || h.Left <= 0 {
				t.Errorf("%s: %+v, and the last token is %d", l.Name, h, l.Token)
			}
			if token, ok := granted[l.Name+"/"+string(h.Lease)]; ok && int64(h.Token) != token {
				t.Errorf("%s: %+v was granted with token %d", l.Name, h, token)
			}
			fmt.Fprintf(&text, " %s/%s/%s/%s/%d", h.Lease, h.Session, h.Owner, h.Mode, h.Permits)
		}
		for _, w := range l.Waiters {
			fmt.Fprintf(&text, " <- %s/%s/%s/%s/%d", w.Lease, w.Session, w.Owner, w.Mode, w.Permits)
		}
		text.WriteByte('\n')
	}
	keys, _ := s.Do("EVAL", sizesOf, "0", b.Tag()+"*").([]any)
	sizes := make([]string, 0, len(keys))
	for _, k := range keys {
		if key := strings.TrimPrefix(fmt.Sprint(k), b.Tag()); !strings.HasPrefix(key, "v ") {
			sizes = append(sizes, key)
		}
	}
	slices.Sort(sizes)
	return text.String() + strings.Join(sizes, "\n")
}

// inflate makes the server store the lock as a hash if it does not already.
func inflate(t testing.TB, b *redislock.Backend, name string) {
	t.Helper()
	if _, err := b.Exec(t.Context(), true, redislock.Inflation(name)); err != nil {
		t.Fatal(err)
	}
}

// generator makes operations of every kind on few locks.
type generator struct {
	*rand.Rand

	granted map[string]int64    // by lock and lease: the token of an immediate grant
	asked   map[string][]string // by lock: its leases, the newest last
	n       int                 // leases
}

// batch returns the operations of clients that are alike as a rule: then their requests are
// sent together.
func (g *generator) batch() [][]string {
	ops := make([][]string, 1+g.IntN(12))
	terms, alike := g.terms(), g.IntN(2) == 0
	for i := range ops {
		if !alike {
			terms = g.terms()
		}
		ops[i] = g.op(terms)
	}
	return ops
}

func (g *generator) one(of ...string) string { return of[g.IntN(len(of))] }

// lease returns a lease that was requested not long ago.
func (g *generator) lease(name string) string {
	const recent = 4
	all := g.asked[name]
	if len(all) == 0 {
		return "nobody's-" + name // a lease is of one lock
	}
	all = all[max(0, len(all)-recent):]
	return all[g.IntN(len(all))]
}

func (g *generator) op(terms []string) []string {
	name := fmt.Sprint("lock", g.IntN(6))
	session := fmt.Sprint("session-", g.IntN(2))
	switch g.IntN(12) {
	case 0, 1, 2, 3, 4:
		return []string{"release", g.one("0", "0", "0", "1", "2"), session, name, g.lease(name)}
	case 5:
		return []string{"renew", session, "0", "1", name, g.lease(name), "7200000"}
	case 6:
		return []string{"check", session, name, g.lease(name)}
	case 7:
		if g.IntN(2) == 0 {
			return []string{"break", name, "why", g.one("", g.lease(name)), ""}
		}
	}
	lease := g.lease(name) // again, or one that has ended
	if g.IntN(5) > 0 {
		g.n++
		lease = fmt.Sprint("lease", g.n)
		g.asked[name] = append(g.asked[name], lease)
	}
	return append(append([]string{"acquire"}, terms...), name, lease)
}

// terms returns what acquires have in common.
func (g *generator) terms() []string {
	session := fmt.Sprint("session-", g.IntN(2))
	if g.IntN(8) == 0 {
		session = "no-such-session"
	}
	mode, limit, permits := "x", "0", "1"
	if g.IntN(3) == 0 {
		mode = "s"
		if limit = g.one("0", "3"); limit != "0" {
			permits = g.one("1", "2")
		}
	}
	wait, channel := "0", ""
	if g.IntN(3) == 0 {
		wait, channel = "1", "c"
	}
	return []string{
		session, g.one("0", "0", "600000"), limit, wait, mode, permits, channel,
		g.one("", "ann", "ann", "0"), g.one("note", ""),
	}
}
