package redlock

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// anyOp returns an operation on a few locks and leases. The numbers are for both the attempt
// and the clock.
func anyOp(r *rand.Rand, number int64) request {
	// After a while all leases were abandoned, or stay: then there are others.
	era := itoa(number / 64)
	lock, lease := era+string(rune('a'+r.IntN(4))), fmt.Sprintf("lease-%s-%d", era, r.IntN(6))
	attempt := itoa(number)
	switch r.IntN(14) {
	default:
		t := terms{ttl: "60000", mode: "x", permits: "1", limit: "0", owner: "w7", note: "n"}
		if r.IntN(4) == 0 {
			t.mode, t.limit = "s", "2"
		}
		return request{verb: opAcquire, lock: lock, args: []string{lock, lease, attempt, itoa(number - int64(r.IntN(2)*1000))}, terms: t}
	case 0, 1, 2, 3, 4:
		return request{verb: opRelease, lock: lock, args: []string{lock, lease}, terms: terms{abandon: flag(r.IntN(8) == 0)}}
	case 5:
		return one(opBack, lock, lease, attempt, "1")
	case 6:
		return many("renew", "2", lock, lease, "90000", era+"a", lease, "80000")
	case 7:
		return one("write", lock, lease, itoa(number+int64(r.IntN(100))))
	case 8:
		return one("has", lock, lease)
	case 9:
		return one("inspect", lock)
	case 10:
		return many("list", era, "", "10")
	case 11:
		return one("break", lock, itoa(number+int64(r.IntN(100))), "breaker-"+attempt, "1", lease)
	}
}

// In a batch each lock sees its operations in the order in which they were called, and what
// belongs together is sent together.
func TestBatchKeepsTheOrder(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	shared := 0
	for range 2000 {
		var ops []*op
		for i := range r.IntN(40) {
			ops = append(ops, &op{request: anyOp(r, int64(i))})
		}
		b := batchOf(ops)
		var order []int
		for _, g := range b.groups {
			order = append(order, g...)
			shared += len(g) - 1
		}
		if sorted := slices.Sorted(slices.Values(order)); len(sorted) != len(ops) || len(slices.Compact(sorted)) != len(ops) {
			t.Fatalf("%d operations, sent %v", len(ops), order)
		}
		for i, x := range order {
			for _, later := range order[i+1:] {
				if a, b := ops[x].lock, ops[later].lock; later < x && (a == b || a == "" || b == "") {
					t.Fatalf("operation %d (%s of %q) came after %d (%s of %q)", later, ops[later].verb, b, x, ops[x].verb, a)
				}
			}
		}
	}
	if shared == 0 {
		t.Error("nothing travelled together")
	}
}

// slowProgram is the program without its short way.
func slowProgram(t *testing.T) program.Program {
	t.Helper()
	files := fstest.MapFS{}
	for _, name := range []string{"node", "quick", "main"} {
		text, err := sources.ReadFile("lua/" + name + ".lua")
		if err != nil {
			t.Fatal(err)
		}
		if name == "quick" {
			text = append(text, "take = function() return nil end\ngive = take\n"...)
		}
		files["lua/"+name+".lua"] = &fstest.MapFile{Data: text}
	}
	p, err := program.New(files, "node", "quick", "main")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// lonely returns a node that runs a program.
func lonely(t *testing.T, p program.Program) *node {
	t.Helper()
	addr := testserver.Redis(t, "--appendonly", "no").Addr()
	var links []link
	for range MinNodes {
		links = append(links, newLink(nil, rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true}, p))
	}
	b, err := newBackend(links, Config{NoQuarantine: true, MaxTTL: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b.nodes[0]
}

// askAll runs the operations in one batch on the node, and returns the answers as texts,
// without their times.
func (n *node) askAll(t *testing.T, requests []request) []string {
	t.Helper()
	told := make([]string, len(requests))
	var ops []*op
	for i, r := range requests {
		ops = append(ops, &op{request: r, reply: func(list []program.Reply, err error) { told[i] = timeless(r.answer(list), err) }})
	}
	b := batchOf(ops)
	answers, err := n.exchange(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	b.tell(answers)
	return told
}

// answer is what the node would have answered the long way.
func (r *request) answer(list []program.Reply) []program.Reply {
	switch {
	case len(list) == 0 || list[0].S != shortWay:
		return list
	case r.verb == opRelease:
		return []program.Reply{program.Int(1)}
	}
	return []program.Reply{program.Text("G"), program.Text(r.args[len(r.args)-1]), list[1], list[2], program.Text("0"), program.Int(0)}
}

func timeless(list []program.Reply, err error) string {
	if err != nil {
		return err.Error()
	}
	var votes func(r program.Reply) string
	votes = func(r program.Reply) string {
		if r.Kind == program.ListReply {
			var all []string
			for _, x := range r.List {
				all = append(all, votes(x))
			}
			slices.Sort(all)
			return fmt.Sprint(all)
		}
		if f := strings.Split(r.S, "\n"); len(f) == 11 { // a record: without its end and its beginning
			return fmt.Sprintf("%q", append(f[:6:6], f[8:]...))
		}
		if r.Kind == program.IntReply {
			return strconv.FormatInt(r.N, 10)
		}
		return r.S
	}
	switch word := votes(list[0]); word {
	case "G": // token left since final old
		return fmt.Sprint("G ", votes(list[1]), " ", votes(list[4]), " ", votes(list[5]))
	case "H", "I", "T": // now
		return fmt.Sprint(word, " ", votes(program.List(list[2:]...)))
	default:
		return fmt.Sprint(word, " ", votes(program.List(list[1:]...)))
	}
}

// The short way does what the long one does: two nodes that get the same operations answer
// the same, although one has no short way.
func TestShortWay(t *testing.T) {
	t.Parallel()
	quickest, err := newProgram()
	if err != nil {
		t.Fatal(err)
	}
	quick, slow := lonely(t, quickest), lonely(t, slowProgram(t))
	const rounds, most = 1500, 8
	r := rand.New(rand.NewPCG(3, 4))
	number := time.Now().UnixMicro()
	granted := 0
	for range rounds {
		var requests []request
		for range 1 + r.IntN(most) {
			number += 1 + int64(r.IntN(3))
			requests = append(requests, anyOp(r, number))
		}
		a, b := quick.askAll(t, requests), slow.askAll(t, requests)
		if !slices.Equal(a, b) {
			t.Fatalf("asked for %+v:\n%q\nand without the short way:\n%q", requests, a, b)
		}
		for _, x := range a {
			granted += toInt(strings.HasPrefix(x, "G "))
		}
	}
	if granted < rounds/10 {
		t.Errorf("%d grants in %d rounds", granted, rounds)
	}
}

// What the argument for the token and the late requests rests on, tried on one node.
func TestNodeRefuses(t *testing.T) {
	t.Parallel()
	p, err := newProgram()
	if err != nil {
		t.Fatal(err)
	}
	n := lonely(t, p)
	now := time.Now().UnixMicro()
	ask := func(lock, lease string, attempt, floor int64) request {
		return request{
			verb: opAcquire, lock: lock, args: []string{lock, lease, itoa(attempt), itoa(floor)},
			terms: terms{ttl: "60000", mode: "s", permits: "1", limit: "0"},
		}
	}
	for _, c := range []struct {
		what string
		ask  request
		want string
	}{
		{"an attempt is released before it arrives", one(opBack, "late", "lease-0", "5", "0"), "0 []"},
		{"it arrives", ask("late", "lease-0", 5, now), "S [5]"},
		{"an attempt before it arrives", ask("late", "lease-0", 4, now), "S [5]"},
		{"the next attempt", ask("late", "lease-0", 6, now), fmt.Sprint("G ", now, " 0 0")},
		{"one of two leases", ask("two", "lease-1", 1, now), fmt.Sprint("G ", now, " 0 0")},
		{"the other, whose token is greater", ask("two", "lease-2", 1, now), fmt.Sprint("G ", now+1, " 0 0")},
		{"the token of the other", one("write", "two", "lease-1", itoa(now+1)), fmt.Sprintf("NO [%d]", now+1)},
		{"a lesser token", one("write", "two", "lease-1", itoa(now)), fmt.Sprintf("NO [%d]", now+1)},
		{"a greater token", one("write", "two", "lease-1", itoa(now+2)), "OK []"},
		{"for a lease without a vote", one("write", "two", "lease-3", itoa(now+9)), fmt.Sprintf("NO [%d]", now+2)},
	} {
		if got := n.askAll(t, []request{c.ask})[0]; got != c.want {
			t.Errorf("%s: %q; want %q", c.what, got, c.want)
		}
	}
}
