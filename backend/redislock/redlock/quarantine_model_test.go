package redlock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// How long a node that lost its data must not vote, checked over all states: three nodes, two
// clients of which one uses the longest TTL and may renew once, requests that arrive at any
// later time or never, replies that are lost, and two losses, of which the second may come
// while the first node waits. A client that failed gives its votes back, each at any time, and
// tries once more under the same lease. A loss leaves a node empty, or brings back a vote that
// was returned or ended by a later one. Clocks run at the same rate and agree about nothing else: every
// time is a number of steps left, so that the time that is checked has no end. Tokens are the
// concern of model_test.go.
//
// Checked at each grant and renewal: the other client does not hold the lock.

const (
	waitMax    = 3 // max_ttl, in steps
	waitLosses = 2
)

// waitRule is how long a node does not vote after a loss.
type waitRule int

const (
	waitsMaxTTL waitRule = iota // what nodes do
	// waitsRestored: the same, and a vote that was brought back counts immediately.
	waitsRestored
	waitsNot
	// waitsUsed: for the longest TTL that the other nodes have on record.
	waitsUsed
	// waitsReported: until both other nodes have reported when their last vote ends, and for
	// that long. They are asked after the loss, and vote themselves.
	waitsReported
	// waitsViewed: the same, and a node that has reported makes all rounds void that began before.
	waitsViewed
)

type waitNode struct {
	vote  int8 // the client whose vote it is, plus one; 0: none that has not ended
	left  int8 // of the vote
	ttl   int8 // of the vote
	till  int8 // the steps for which it does not vote yet
	lost  bool // and has not heard the others
	stale bool // the vote was brought back by the loss
	// For each client, how long its last vote would last, whatever became of it.
	was   [modelClients]int8
	views int8 // how often it has reported
}

type waitClient struct {
	rounds int8 // begun
	renews bool // the round does; otherwise it acquires
	valid  int8 // for how long a success of the round counts
	got    uint8
	until  int8 // the steps for which it holds the lock
	views  [modelNodes]int8
	void   bool
}

type waitModel struct {
	losses  int8
	nodes   [modelNodes]waitNode
	clients [modelClients]waitClient
}

var waitTTL = [modelClients]int8{waitMax, 1}

func (m waitModel) next(r waitRule, f func(waitModel, string)) {
	f(m.tick(), "")
	for i := range modelNodes {
		if m.losses < waitLosses {
			f(m.lose(i, r), "")
			for c, left := range m.nodes[i].was {
				if left > 0 && (r == waitsMaxTTL || r == waitsRestored) {
					f(m.lose(i, r).restore(i, c, left), "")
				}
			}
		}
		if v := m.nodes[i].vote; v > 0 && m.clients[v-1].until == 0 && m.clients[v-1].valid == 0 {
			f(m.giveBack(i), "")
		}
		if m.nodes[i].lost {
			m.hear(i, r, f)
		}
	}
	for c := range modelClients {
		m.begin(c, f)
		for i := range modelNodes {
			if me := &m.clients[c]; me.valid > 0 && me.got&(1<<i) == 0 {
				m.arrive(c, i, r, f)
			}
		}
	}
}

// tick is a step of time.
func (m waitModel) tick() waitModel {
	for i := range m.nodes {
		n := &m.nodes[i]
		n.till = max(0, n.till-1)
		if n.left = max(0, n.left-1); n.left == 0 {
			n.vote, n.ttl, n.stale = 0, 0, false
		}
		for c := range n.was {
			n.was[c] = max(0, n.was[c]-1)
		}
		n.lost = n.lost && n.till > 0
	}
	for c := range m.clients {
		me := &m.clients[c]
		me.until = max(0, me.until-1)
		if me.valid = max(0, me.valid-1); me.valid == 0 { // nothing of the round counts any more
			me.got, me.views, me.void = 0, [modelNodes]int8{}, false
		}
	}
	return m
}

func (m waitModel) lose(i int, r waitRule) waitModel {
	m.losses++
	was := m.nodes[i]
	m.nodes[i] = waitNode{views: was.views}
	me := &m.nodes[i]
	switch r {
	case waitsMaxTTL, waitsRestored:
		me.till = waitMax
	case waitsNot:
	case waitsUsed:
		for _, n := range m.nodes {
			me.till = max(me.till, n.ttl)
		}
	case waitsReported, waitsViewed:
		me.till, me.lost = waitMax, true
	}
	return m
}

// restore brings back a vote of the client that the node gave before.
func (m waitModel) restore(i, c int, left int8) waitModel {
	n := &m.nodes[i]
	n.vote, n.left, n.ttl, n.stale = int8(c)+1, left, left, true
	return m
}

// giveBack makes a node execute that a client which failed gives its vote back.
func (m waitModel) giveBack(i int) waitModel {
	n := &m.nodes[i]
	n.vote, n.left, n.ttl, n.stale = 0, 0, 0, false
	return m
}

// hear lets a node that lost its data hear from the others when their last votes end.
func (m waitModel) hear(i int, r waitRule, f func(waitModel, string)) {
	var till int8
	for k := range m.nodes {
		n := &m.nodes[k]
		switch {
		case k == i:
			continue
		case n.till > 0:
			return // it waits itself
		}
		till = max(till, n.left)
		if r == waitsViewed {
			n.views++
		}
	}
	m.nodes[i].till, m.nodes[i].lost = min(m.nodes[i].till, till), false
	f(m, "")
}

// begin starts a round of a client: to acquire, and then to renew or to try again.
func (m waitModel) begin(c int, f func(waitModel, string)) {
	me := &m.clients[c]
	if me.rounds == 2 || me.rounds == 1 && waitTTL[c] != waitMax {
		return
	}
	me.rounds, me.renews, me.valid, me.got, me.void = me.rounds+1, me.until > 0, waitTTL[c], 0, false
	for i, n := range m.nodes {
		me.views[i] = n.views
	}
	f(m, "")
}

// arrive makes a node execute the request of the round. When the round does not count any
// more its requests do no harm: a vote that is not counted only excludes other clients.
func (m waitModel) arrive(c, i int, r waitRule, f func(waitModel, string)) {
	me, n := &m.clients[c], &m.nodes[i]
	mine := n.vote == int8(c)+1
	if n.vote != 0 && !mine || !mine && (me.renews || n.till > 0) || n.stale && n.till > 0 && r != waitsRestored {
		return
	}
	n.vote, n.left, n.ttl = int8(c)+1, waitTTL[c], waitTTL[c]
	n.was[c] = n.left
	f(m, "") // the reply is lost
	me.got |= 1 << i
	me.void = me.void || me.views[i] != n.views
	wrong := ""
	if count(me.got) >= modelMajority && !me.void {
		me.until = me.valid
		if m.clients[1-c].until > 0 {
			wrong = "two hold the lock"
		}
	}
	f(m, wrong)
}

func TestQuarantineModel(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for _, c := range []struct {
		name  string
		rule  waitRule
		wrong bool
	}{
		{"max_ttl", waitsMaxTTL, false},
		{"and a vote that was brought back counts", waitsRestored, true},
		{"no quarantine", waitsNot, true},
		{"the longest TTL that the other nodes know", waitsUsed, true},
		{"until what the other nodes know has ended", waitsReported, true},
		{"and no round spans a report", waitsViewed, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n, wrong := leasetest.Explore(waitModel{}, func(m waitModel, to func(waitModel, string)) { m.next(c.rule, to) })
			t.Logf("%d states; %s", n, wrong)
			if (wrong != "") != c.wrong {
				t.Errorf("found %q", wrong)
			}
		})
	}
}
