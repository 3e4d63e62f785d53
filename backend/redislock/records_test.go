package redislock_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// TestRecords: whatever is requested while sessions and leases end all the time, the records do not contradict each
// other after any request, no lock is granted while another lease surely holds it, and tokens grow.
func TestRecords(t *testing.T) {
	t.Parallel()
	inBothForms(t, func(t *testing.T, args ...string) {
		t.Helper()
		for _, disturbance := range []string{"none", "full", "clock"} {
			t.Run(disturbance, func(t *testing.T) {
				t.Parallel()
				s, cfg := quick(t, args...)
				disturb := func(*churn) bool { return false }
				switch disturbance {
				case "full":
					disturb = func(c *churn) bool {
						s.Do("CONFIG", "SET", "maxmemory", c.one("0", "1"))
						return false
					}
				case "clock":
					again, clock := testserver.WithClock(t, s)
					s = again
					disturb = func(c *churn) bool {
						to := [...]time.Duration{-time.Hour, -3 * time.Second, -40 * time.Millisecond, 0, 0, 40 * time.Millisecond, 3 * time.Second}
						clock.Set(to[c.IntN(len(to))])
						return true
					}
				}
				cfg.Quarantine = time.Millisecond
				testRecords(t, s, disturb, open(t, s, cfg), open(t, s, redislock.Config{Prefix: "other", Quarantine: redislock.NoQuarantine}))
			})
		}
	})
}

func testRecords(t *testing.T, s *testserver.RedisServer, disturb func(*churn) bool, backends ...*redislock.Backend) {
	t.Helper()
	seed := rand.Uint64()
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 2)), asked: make(map[string][]string)}
	var all []*churn
	for _, b := range backends { // their leases differ, because they have one generator
		all = append(all, &churn{
			generator: g, Backend: b, s: s, ends: make(map[string]time.Time), dies: make(map[string]time.Time), ttls: make(map[string]time.Duration),
			leases: make(map[string]*churned), modes: make(map[string]string),
		})
	}
	var log []string
	jumped := ""
	for step := range 300 {
		c := all[g.IntN(len(all))]
		if g.IntN(8) == 0 {
			if disturb(c) { // everything may have ended
				jumped = "jumped"
				for _, c := range all {
					clear(c.ends)
					for id := range c.dies {
						c.dies[id] = time.Now().Add(time.Hour)
					}
					clear(c.leases)
				}
			}
		}
		line, err := c.request(t)
		const last = 20
		log = append(log[max(0, len(log)-last):], fmt.Sprint(step, " ", c.Tag(), " ", line))
		var found []any
		if err == nil {
			found = contradictions(t, s, c.Backend, jumped)
		}
		if err != nil || len(found) > 0 {
			t.Fatalf("seed %d, step %d: %v; the records contradict each other: %q\n%s", seed, step, err, found, strings.Join(log, "\n"))
		}
		if g.IntN(3) == 0 {
			time.Sleep(time.Duration(g.IntN(20)) * time.Millisecond)
		}
	}
}

// churn makes the requests of one partition, and knows who surely holds its locks.
type churn struct {
	*generator
	*redislock.Backend

	s       *testserver.RedisServer
	opened  int
	thin    []string             // records of thin locks, some of which are gone
	given   [][]string           // releases, to be repeated
	ends    map[string]time.Time // of a session: it ends no earlier
	dies    map[string]time.Time // and no later
	ttls    map[string]time.Duration
	leases  map[string]*churned
	token   int64             // the greatest one that is known
	modes   map[string]string // of a lease: "?" when it was requested in both
	session [4]string
}

// churned is a lease that surely holds its lock.
type churned struct {
	name, session string // the latter only if it lives with that
	until         time.Time
	token         int64
}

// short returns a TTL in ms.
func (c *churn) short() string {
	return c.one(strconv.Itoa(5+c.IntN(30)), strconv.Itoa(5+c.IntN(295)), "60000")
}

func (c *churn) who() string {
	if id := c.session[c.IntN(len(c.session))]; id != "" && c.IntN(20) > 0 {
		return id
	}
	return "nobody"
}

func (c *churn) ops() [][]string {
	n := 1
	if c.IntN(2) == 0 {
		n += c.IntN(12)
	}
	ops, alike := make([][]string, n), c.terms()
	for i := range ops {
		at := c.IntN(len(c.session))
		name, session := fmt.Sprint("lock", c.IntN(4)), c.who()
		switch k := c.IntN(30); {
		case c.ends[c.session[at]].Before(time.Now()) && k < 15, k == 0:
			if k > 4 || c.session[at] == "" {
				c.opened++
				c.session[at] = fmt.Sprint("session-", at, "-", c.opened)
			}
			ops[i] = []string{"session.open", c.session[at], c.short(), c.one("", "c")}
		case k < 2:
			ops[i] = []string{"session.end", session, "0"}
		case k < 5:
			ops[i] = []string{"renew", session, "1", c.lease(name), "2", name, c.lease(name), c.one("0", c.short()), name, c.lease(name), "0"}
			if c.IntN(3) == 0 {
				ops[i] = []string{"renew", session, "0", "0"}
			}
		case k < 10:
			ops[i] = []string{"release", c.one("0", "0", "0", "0", "1", "2"), session, name, c.lease(name)}
			if len(c.given) > 0 && c.IntN(5) == 0 {
				ops[i] = c.given[c.IntN(len(c.given))]
			}
			c.given = append(c.given[max(0, len(c.given)-30):], ops[i])
		case k < 13:
			ops[i] = []string{"check", session, name, c.lease(name)}
		case k < 15:
			ops[i] = []string{"break", name, "why", c.one("", "", c.lease(name)), c.one("", "", strconv.FormatInt(c.token-int64(c.IntN(4)), 10))}
		case k == 15 && c.IntN(3) == 0:
			ops[i] = []string{"watch", strconv.Itoa(1 + c.IntN(60)), "fresh"}
		case k == 15:
			ops[i] = [][]string{{"list", c.one("", "lock"), "", "3"}, {"inspect", name}, {"ready"}}[c.IntN(3)]
		default:
			if c.IntN(3) > 0 {
				alike = c.terms()
			}
			lease := c.lease(name)
			if c.IntN(5) > 0 {
				c.n++
				lease = fmt.Sprint("lease", c.n)
				c.asked[name] = append(c.asked[name], lease)
			}
			ops[i] = append(append([]string{"acquire"}, alike...), name, lease)
		}
	}
	return ops
}

// crowd returns so many leases that end together that one execution cannot remove them all.
func (c *churn) crowd() [][]string {
	c.opened++
	session, terms := fmt.Sprint("crowd-", c.opened), c.terms()
	terms[0], terms[1] = session, c.one("0", strconv.Itoa(5+c.IntN(30)))
	ops := [][]string{{"session.open", session, strconv.Itoa(5 + c.IntN(30)), ""}}
	for range 210 + c.IntN(300) {
		c.n++
		ops = append(ops, append(append([]string{"acquire"}, terms...), fmt.Sprint("crowd", c.IntN(400)), fmt.Sprint("lease", c.n)))
	}
	return ops
}

func (c *churn) terms() []string {
	terms := c.generator.terms()
	terms[0] = c.who()
	if terms[1] != "0" {
		terms[1] = c.short()
		if terms[3] == "0" && c.IntN(2) == 0 {
			terms[0] = ""
		}
	}
	return terms
}

// request sends random operations, or removes a thin lock as its client would, late, and compares the answers with what is
// known.
func (c *churn) request(t *testing.T) (string, error) {
	t.Helper()
	if k := c.IntN(12); k == 0 && len(c.thin) > 0 {
		member := c.thin[c.IntN(len(c.thin))]
		delete(c.leases, strings.Split(member, "\n")[1])
		return fmt.Sprintf("ZREM %q: %v", member, c.s.Do("ZREM", c.Tag()+"t", member)), nil
	} else if k == 1 {
		all, _ := c.s.Do("ZRANGE", c.Tag()+"t", "0", "-1").([]any)
		for _, member := range all {
			const ttl = 7
			if m := fmt.Sprint(member); strings.Split(m, "\n")[ttl] == "0" {
				c.thin = append(c.thin[max(0, len(c.thin)-10):], m)
			}
		}
	}
	ops, together := c.ops(), c.IntN(4) > 0
	if c.IntN(40) == 0 {
		ops, together = c.crowd(), true
	}
	sent := time.Now()
	answers, err := c.Exec(t.Context(), together, ops)
	received := time.Now()
	const shown = 20 // a crowd is alike
	var line strings.Builder
	fmt.Fprint(&line, "together: ", together)
	for i, answer := range answers[:min(len(answers), shown)] {
		fmt.Fprintf(&line, "\n    %q: %v", ops[i], answer)
	}
	if err == nil {
		err = c.learn(ops, answers, sent, received)
	}
	return line.String(), err
}

// learn compares the answers to requests that were sent and answered at these instants with what is known, and notes
// them. Operations of one execution may run in another order, so what any of them may end is not known to last.
func (c *churn) learn(ops [][]string, answers [][]redislock.Reply, sent, received time.Time) error {
	const margin = 3 * time.Millisecond
	after := func(d time.Duration) time.Time { return sent.Add(d - margin) }
	millis := func(text string) time.Duration {
		d, _ := time.ParseDuration(text + "ms")
		return d
	}
	before := c.token
	ends := func(lease string, l *churned) bool {
		return slices.ContainsFunc(ops, func(op []string) bool {
			return op[0] == "release" && op[4] == lease || op[0] == "break" && op[1] == l.name
		})
	}
	maps.DeleteFunc(c.leases, func(lease string, l *churned) bool {
		return ends(lease, l) || c.until(l).Before(sent.Add(-time.Second)) // the latter to be quick
	})
	c.renewals(ops, answers, after)
	for i, op := range ops {
		word := redislock.Word(answers[i])
		switch {
		case strings.HasPrefix(word, "redis: ") && !strings.Contains(word, "OOM"):
			return fmt.Errorf("%q: %s", op, word)
		case op[0] == "session.open":
			delete(c.ends, op[1])
			if word == "OK" {
				c.ttls[op[1]] = millis(op[2])
				c.ends[op[1]], c.dies[op[1]] = after(c.ttls[op[1]]), received.Add(c.ttls[op[1]]+margin)
			}
		case op[0] == "session.end":
			delete(c.ends, op[1])
			c.dies[op[1]] = received
		case op[0] == "renew":
			delete(c.ends, op[1])
			if word == "OK" && redislock.Number(answers[i][1]) == 1 {
				c.ends[op[1]], c.dies[op[1]] = after(c.ttls[op[1]]), received.Add(c.ttls[op[1]]+margin)
			}
		case op[0] == "break" && word == "OK" && op[4] == "":
			token := redislock.Number(answers[i][1])
			if token <= before {
				return fmt.Errorf("%q: the token %d is not above %d", op, token, before)
			}
			c.token = max(c.token, token)
		case op[0] == "acquire":
			lease := op[len(op)-1]
			if mode := c.modes[lease]; mode == "" {
				c.modes[lease] = op[5]
			} else if mode != op[5] {
				c.modes[lease] = "?"
			}
		}
	}
	for i, op := range ops {
		if op[0] != "acquire" && op[0] != "check" || redislock.Word(answers[i]) != "G" {
			continue
		}
		name, lease, token, left := op[len(op)-2], op[len(op)-1], redislock.Number(answers[i][1]), redislock.Number(answers[i][3])
		known, now := c.leases[lease], len(answers[i]) == 5
		if now && token <= before || known != nil && !now && token != known.token {
			return fmt.Errorf("%q: the token %d, and those before were up to %d: %+v", op, token, before, known)
		}
		c.token = max(c.token, token)
		if left == 0 && c.dies[op[1]].Before(sent) {
			return fmt.Errorf("%q: granted under a session that has ended", op)
		}
		for other, l := range c.leases {
			if other != lease && l.name == name && (c.modes[lease] == "x" || c.modes[other] == "x") && c.until(l).After(received) {
				return fmt.Errorf("%q: granted to %s %s while %s %s %+v holds it for another %s", op, lease, c.modes[lease], other, c.modes[other], *l,
					c.until(l).Sub(received))
			}
		}
		l := &churned{name: name, token: token, until: after(time.Duration(left) * time.Microsecond)}
		if left == 0 {
			l.session = op[1]
		}
		if (known == nil || now) && !ends(lease, l) { // a renewal may have changed the end of one that is known
			c.leases[lease] = l
		}
	}
	c.renewals(ops, answers, after) // of leases that were granted in the same execution
	return nil
}

// renewals notes until when the timed leases last that were renewed.
func (c *churn) renewals(ops [][]string, answers [][]redislock.Reply, after func(time.Duration) time.Time) {
	const first, each = 6, 3 // the leases in the operation
	for i, op := range ops {
		if op[0] != "renew" || redislock.Word(answers[i]) != "OK" {
			continue
		}
		for k, l := range answers[i][3:] {
			known := c.leases[op[first+each*k]]
			if known == nil || known.session != "" {
				continue
			}
			known.until = time.Time{}
			if redislock.Word(l.List) == "OK" {
				known.until = after(time.Duration(redislock.Number(l.List[2])) * time.Microsecond)
			}
		}
	}
}

// until returns until when the lease surely lasts.
func (c *churn) until(l *churned) time.Time {
	if l.session != "" {
		return c.ends[l.session]
	}
	return l.until
}
