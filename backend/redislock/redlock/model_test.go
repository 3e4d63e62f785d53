package redlock_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// The token protocol as a small specification, checked over all its states: three nodes, two
// clients that make two attempts and one, or one each, in every order of their requests and
// answers. Any request may be lost. Votes may end much too early: the clocks of nodes are not
// trusted. A node may lose its data. docs/backends/redlock.md describes it in words.
//
// Checked at each grant: its token is greater than that of every grant that had counted
// before the attempt began, and no other grant has the same one.

const (
	modelNodes    = 3
	modelClients  = 2
	modelAttempts = 2 // of a client, at most
	modelMajority = 2
	tick          = 16 // tokens to a step of the clock: what they may run ahead of it
)

// rules are the parts that can be left out, to see that each is needed.
type rules struct {
	shared      bool // votes of several leases exist together
	noWriteBack bool // the greatest vote is the token
	noOwner     bool // a node takes a token as great as another lease's
	noOwnVote   bool // a node takes a token for a lease that has no vote any more
	loss        bool // one node loses its data, once
	noWait      bool // and votes immediately afterwards
	early       int8 // how many votes may end too early
	attempts    [modelClients]int8
}

type modelNode struct {
	votes uint8 // by client
	ctr   int8
	by    int8 // the attempt that set it, plus one
	till  int8 // it does not vote before this step of the clock
}

type modelClient struct {
	phase   modelPhase
	tries   int8  // attempts begun
	must    int8  // the greatest token that counted before the attempt began
	asked   uint8 // nodes that voted, whether the answer came or not
	got     uint8 // nodes whose vote came
	token   int8  // the greatest vote, or what is written
	acks    uint8 // nodes that have it
	again   bool  // the token is the second one
	greater int8  // the greatest token that a node had instead
}

type modelPhase int8

const (
	modelIdle modelPhase = iota
	modelVoting
	modelWriting
)

// model is a state.
type model struct {
	nodes   [modelNodes]modelNode
	clients [modelClients]modelClient
	clock   int8
	lost    bool
	early   int8                               // votes that ended too early
	most    int8                               // the greatest token of a grant
	tokens  [modelClients * modelAttempts]int8 // of all grants, by attempt
}

func (m model) attempt(c int) int8 { return int8(c*modelAttempts) + m.clients[c].tries - 1 }

// next calls f with all states that can follow, and the reason why one is wrong.
func (m model) next(r rules, f func(model, string)) {
	for c := range modelClients {
		m.act(c, r, f)
	}
	for i := range modelNodes {
		for c := range modelClients { // a vote ends too early
			if m.nodes[i].votes&(1<<c) != 0 && m.early < r.early {
				n := m
				n.early++
				n.nodes[i].votes &^= 1 << c
				f(n, "")
			}
		}
		if r.loss && !m.lost {
			n := m
			n.lost = true
			n.nodes[i] = modelNode{till: m.clock + 1}
			if r.noWait {
				n.nodes[i].till = 0
			}
			f(n, "")
		}
	}
	if r.loss && m.clock < 2 {
		n := m
		n.clock++
		f(n, "")
	}
}

// act calls f with what a client can do.
func (m model) act(c int, r rules, f func(model, string)) {
	me := &m.clients[c]
	switch me.phase {
	case modelIdle:
		if me.tries < r.attempts[c] {
			*me = modelClient{phase: modelVoting, tries: me.tries + 1, must: m.most}
			f(m, "")
		}
	case modelVoting:
		for i := range modelNodes {
			if me.asked&(1<<i) == 0 {
				m.vote(c, i, r, f)
			}
		}
		if count(me.got) >= modelMajority {
			m.conclude(c, r, f)
		}
		m.giveUp(c, f)
	case modelWriting:
		for i := range modelNodes {
			if me.acks&(1<<i) == 0 && me.got&(1<<i) != 0 {
				m.write(c, i, r, f)
			}
		}
		if me.greater >= me.token && !me.again { // it tries a greater one, once
			n := m
			n.clients[c].token, n.clients[c].acks, n.clients[c].again = me.greater+1, 0, true
			f(n, "")
		}
		m.giveUp(c, f)
	}
}

// giveUp ends the attempt. Its votes are released.
func (m model) giveUp(c int, f func(model, string)) {
	f(m.without(c), "")
}

// without returns the state after the end of an attempt.
func (m model) without(c int) model {
	m.clients[c] = modelClient{tries: m.clients[c].tries}
	for i := range m.nodes {
		m.nodes[i].votes &^= 1 << c
	}
	return m
}

// vote asks a node for its vote. A request that is lost, or refused, changes nothing.
func (m model) vote(c, i int, r rules, f func(model, string)) {
	me, n := &m.clients[c], &m.nodes[i]
	if n.till > m.clock || n.votes != 0 && !r.shared || n.votes&(1<<c) != 0 {
		return
	}
	n.votes |= 1 << c
	n.ctr, n.by = max(n.ctr+1, m.clock*tick), m.attempt(c)+1
	me.asked |= 1 << i
	f(m, "") // the answer is lost
	me.got |= 1 << i
	switch {
	case n.ctr > me.token:
		me.token, me.acks = n.ctr, 1<<i
	case n.ctr == me.token:
		me.acks |= 1 << i
	}
	f(m, "")
}

// conclude settles on a token.
func (m model) conclude(c int, r rules, f func(model, string)) {
	me := &m.clients[c]
	if r.noWriteBack || count(me.acks) >= modelMajority {
		m.grant(c, f)
		return
	}
	me.phase, me.asked = modelWriting, 0
	f(m, "")
}

// write makes a node record the token. A request that is lost changes nothing.
func (m model) write(c, i int, r rules, f func(model, string)) {
	me, n := &m.clients[c], &m.nodes[i]
	mine := n.by == m.attempt(c)+1
	if n.votes&(1<<c) == 0 && !r.noOwnVote || n.till > m.clock || n.ctr > me.token || n.ctr == me.token && !mine && !r.noOwner {
		me.greater = max(me.greater, n.ctr)
		f(m, "")
		return
	}
	n.ctr, n.by = me.token, m.attempt(c)+1
	f(m, "") // the answer is lost
	me.acks |= 1 << i
	if count(me.acks) >= modelMajority {
		m.grant(c, f)
		return
	}
	f(m, "")
}

// grant makes a grant count.
func (m model) grant(c int, f func(model, string)) {
	me := &m.clients[c]
	wrong := ""
	if me.token <= me.must {
		wrong = fmt.Sprintf("token %d after %d", me.token, me.must)
	}
	for _, t := range m.tokens {
		if t == me.token {
			wrong = fmt.Sprintf("token %d twice", t)
		}
	}
	m.tokens[m.attempt(c)] = me.token
	m.most = max(m.most, me.token)
	f(m.without(c), wrong)
}

func count(set uint8) int {
	n := 0
	for ; set != 0; set &= set - 1 {
		n++
	}
	return n
}

func TestTokenModel(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		rules rules
		wrong bool
	}{
		{"exclusive", rules{early: 1, attempts: [2]int8{2, 1}}, false},
		{"shared", rules{shared: true, early: 1, attempts: [2]int8{1, 1}}, false},
		{"a node loses its data", rules{loss: true, attempts: [2]int8{1, 1}}, false},
		{"no write-back", rules{noWriteBack: true, attempts: [2]int8{1, 1}}, true},
		{"the owner of a token is not looked at", rules{shared: true, noOwner: true, attempts: [2]int8{1, 1}}, true},
		{"no quarantine", rules{loss: true, noWait: true, attempts: [2]int8{1, 1}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			start := model{}
			for i := range start.nodes { // they have come apart before
				start.nodes[i].ctr = int8(i)
			}
			n, wrong := leasetest.Explore(start, func(m model, to func(model, string)) { m.next(c.rules, to) })
			t.Logf("%d states; %s", n, wrong)
			if (wrong != "") != c.wrong {
				t.Errorf("found %q", wrong)
			}
		})
	}
}
