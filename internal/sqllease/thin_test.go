package sqllease_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// Thin and fat locks as a small specification, checked over all its states: one lock, and clients
// with a session each, in every order of their statements and answers. A statement on the row of the
// lock first sees the other tables as they are when it begins. Then it may wait for the row, and
// changes what the row is by then. A long transaction holds the row, and sees everything. Any answer
// may be lost, any request may be late, and a client may give up at any moment. A session may end,
// the lock may be broken, the row may be swept, and a watcher may come: one of these happens, once.
//
// InnoDB differs (ADR 0014): a statement changes also a row that was made after it began. So it asks only the
// row whether there are tombs, and whether its number is above the floor; or it makes sure that there is a row,
// and then sees everything.
//
// Checked: no client holds the lock while another one does; tokens grow with each grant; a lease that
// was released is not on record any more; a watcher misses nothing.

const thinClients = 3

// thinRules are the parts that can be left out, to see that each is needed.
type thinRules struct {
	tries  [thinClients]int8
	faults int8 // how many answers are lost, and how often clients give up

	happen int8 // how often a session ends, a row is swept, and so on; otherwise once
	innodb bool

	noFat      bool // a statement does not ask whether the lock is fat
	anyLease   bool // a release clears whatever is thin
	over       bool // an acquisition takes over what is thin already
	both       bool // a lock that was inflated stays thin, too
	forgets    bool // an inflated lease is not written to the table
	noLong     bool // a release that changes nothing is not sent the long way
	noTombs    bool // a lease in doubt is released like any other
	oldTombs   bool // a statement that waited trusts the tombs that it saw
	noFloor    bool // a token is above the last number of the row only
	insertGets bool // the statement that inserts the row grants the lease with it
	sweepsThin bool // the row of a thin lock is swept
	noBarrier  bool // a watcher does not wait for statements that have begun
	noNumber   bool // a row is used although its number is not known to be above the floor
	watchThin  bool // locks that are thin when a watcher comes stay thin, and are released so
}

type thinPhase int8

const (
	thinIdle thinPhase = iota
	thinAsks
	thinHolds
	thinLost // it was told, or knows by its clock, and has not released it yet
	thinGives
)

// thinStep is how far the statement of a client is.
type thinStep int8

const (
	thinNone   thinStep = iota
	thinSent            // it has not begun
	thinInsert          // the insertion of the row has begun
	thinBegun           // it has begun, and may wait for the row
)

// thinView is what a statement has seen of other tables.
type thinView struct {
	row, floor, buried int8
	tombs              uint16
	dead, watched      bool
}

type thinClient struct {
	phase  thinPhase
	tries  int8
	lease  int8 // of the present attempt
	token  int8
	answer int8 // the token of a grant on the way
	doubt  bool // an acquisition was not answered
	long   bool // the request goes the long way, and is on the way

	step  thinStep // of the short acquisition, or release, on the way
	about int8     // its lease
	gives bool     // it is a release
	asks  bool     // it asks only the row
	view  thinView
}

type thinState struct { //nolint:recvcheck // a method with a value receiver changes a copy, which is the next state
	row, last, floor int8 // row counts the rows of the lock that there were; negative: there is none
	fat, unnumbered  bool
	buried           int8 // changes with each tomb
	thin, thinToken  int8
	held, heldToken  int8 // in the table of leases
	queue            [thinClients]int8
	tombs            uint16
	dead             [thinClients]bool
	watched          bool
	happened         int8
	faults, most     int8
	clients          [thinClients]thinClient
}

const thinTries = 2

func thinOwner(lease int8) int { return int(lease-1) / thinTries }

func (m *thinState) lives(lease int8) bool { return lease != 0 && !m.dead[thinOwner(lease)] }

func (m *thinState) isThin() bool { return m.row >= 0 && !m.fat && m.thin != 0 }

func (m *thinState) onRecord(lease int8) bool {
	return m.isThin() && m.thin == lease || m.held == lease || m.queue[0] == lease || m.queue[1] == lease || m.queue[2] == lease
}

func (m *thinState) dequeue(lease int8) {
	k := 0
	for _, l := range m.queue {
		if l != lease {
			m.queue[k] = l
			k++
		}
	}
	for ; k < len(m.queue); k++ {
		m.queue[k] = 0
	}
}

func (m *thinState) number() int8 {
	m.last = max(m.last, m.floor) + 1 // a long transaction sees the floor of now
	return m.last
}

// long is a long transaction: it inflates the lock, does what it is for, and hands over.
func (m *thinState) long(r thinRules, do func()) {
	if m.row < 0 {
		m.row, m.last, m.fat, m.thin, m.buried = -m.row, m.floor, false, 0, 0
	}
	m.last, m.unnumbered = max(m.last, m.floor), false
	if m.isThin() && !r.forgets {
		if m.lives(m.thin) {
			m.held, m.heldToken = m.thin, m.thinToken
		}
	}
	if !r.both {
		m.thin, m.thinToken, m.fat = 0, 0, true
	}
	if m.held != 0 && !m.lives(m.held) {
		m.held, m.heldToken = 0, 0
	}
	do()
	for m.held == 0 && m.queue[0] != 0 {
		lease := m.queue[0]
		m.dequeue(lease)
		if m.lives(lease) {
			m.held, m.heldToken = lease, m.number()
			m.grant(lease, m.heldToken)
		}
	}
	if m.held == 0 {
		m.fat = false
	}
}

func (m *thinState) grant(lease, token int8) {
	if me := &m.clients[thinOwner(lease)]; me.lease == lease {
		me.answer = token
	}
}

func (m *thinState) acquireLong(r thinRules, lease int8) {
	m.long(r, func() {
		switch {
		case m.held == lease:
			m.grant(lease, m.heldToken)
		case m.onRecord(lease), m.tombs&(1<<lease) != 0, !m.lives(lease):
		default:
			k := 0
			for m.queue[k] != 0 {
				k++
			}
			m.queue[k] = lease
		}
	})
}

func (m *thinState) releaseLong(r thinRules, c int) {
	me := &m.clients[c]
	m.long(r, func() {
		if me.doubt && !r.noTombs {
			m.tombs |= 1 << me.lease
			m.buried++
		}
		m.dequeue(me.lease)
		if m.held == me.lease {
			m.held, m.heldToken = 0, 0
		}
	})
}

// next calls f with all states that can follow, and the reason why one is wrong.
func (m thinState) next(r thinRules, f func(thinState, string)) {
	for c := range thinClients {
		m.statement(c, r, f)
		m.act(c, r, f)
		if me := &m.clients[c]; m.happened < max(1, r.happen) && !m.dead[c] && me.phase != thinHolds && me.answer == 0 {
			n := m // its session ends, and whatever waits is tended
			n.dead[c] = true
			n.happened++
			for lease := int8(c*thinTries + 1); lease <= int8(c*thinTries+thinTries); lease++ {
				n.dequeue(lease)
			}
			if n.held != 0 && thinOwner(n.held) == c {
				n.long(r, func() {})
			}
			f(n, "")
		}
	}
	if m.happened >= max(1, r.happen) {
		return
	}
	m.breaks(r, f)
	if m.row >= 0 && m.held == 0 && m.queue[0] == 0 && (!m.isThin() || r.sweepsThin) && m.buried == 0 {
		n := m
		n.floor, n.row = max(m.floor, m.last), -(m.row + 1)
		n.happened++
		n.fat, n.thin, n.thinToken, n.last, n.unnumbered = false, 0, 0, 0, false
		f(n, "")
	}
	if r.innodb { // it has no watchers
		return
	}
	for c := range m.clients {
		if m.clients[c].step >= thinInsert && !r.noBarrier {
			return
		}
	}
	n := m
	n.watched = true
	n.happened++
	if !r.watchThin && n.isThin() {
		n.long(r, func() {})
	}
	f(n, "")
}

// breaks is a break of the lock. The client is told.
func (m thinState) breaks(r thinRules, f func(thinState, string)) {
	if !m.isThin() && m.held == 0 {
		return
	}
	m.happened++
	m.long(r, func() {
		m.number()
		if m.held == 0 {
			return
		}
		if me := &m.clients[thinOwner(m.held)]; me.lease == m.held {
			me.answer = 0
			if me.phase == thinHolds || me.phase == thinAsks {
				me.phase = thinLost
			}
		}
		m.held, m.heldToken = 0, 0
	})
	f(m, "")
}

// statement is the next step of the short statement that a client has on the way.
func (m thinState) statement(c int, r thinRules, f func(thinState, string)) {
	me := &m.clients[c]
	view := thinView{row: m.row, floor: m.floor, buried: m.buried, tombs: m.tombs, dead: m.dead[c], watched: m.watched}
	switch me.step {
	case thinNone:
	case thinSent:
		me.view, me.step = view, thinBegun
		if r.innodb && !me.gives {
			me.asks = true
			f(m, "")
			me.asks = false
		}
		if (m.row < 0 || r.innodb) && !me.gives {
			me.step = thinInsert
		}
		f(m, "")
	case thinInsert:
		if m.row < 0 {
			m.row, m.last, m.fat, m.thin, m.buried = -m.row, me.view.floor, false, 0, 0
			if m.unnumbered = r.innodb; r.innodb {
				m.last = 0
			}
		}
		if view.row = m.row; !r.insertGets { // the next statement sees what was committed before this
			me.view = view
		}
		me.view.row, me.step = m.row, thinBegun
		if r.innodb { // it has locked the row
			me.step = thinNone
			m.acquireShort(c, r, f)
			return
		}
		f(m, "")
	case thinBegun:
		me.step = thinNone
		if me.gives {
			m.releaseShort(c, r, f)
		} else {
			m.acquireShort(c, r, f)
		}
	}
}

func (m thinState) acquireShort(c int, r thinRules, f func(thinState, string)) {
	me, v := &m.clients[c], &m.clients[c].view
	buried := v.tombs&(1<<me.about) != 0 || m.buried != v.buried && !r.oldTombs
	free := (m.thin == 0 || r.over) && (!m.fat || r.noFat)
	wanted := me.lease == me.about && me.phase == thinAsks
	seen := m.row == v.row
	if me.asks {
		seen = m.row >= 0 && (!m.unnumbered || r.noNumber)
		buried = m.buried != 0 && !r.oldTombs
	}
	if !seen || !free || buried || v.watched || v.dead {
		me.long = wanted || me.long
		f(m, "")
		return
	}
	wrong := ""
	if m.watched {
		wrong = "a watcher misses a grant"
	}
	if r.noFloor || me.asks {
		m.last++
	} else {
		m.last = max(m.last, v.floor) + 1
	}
	m.unnumbered = false
	m.thin, m.thinToken = me.about, m.last
	m.grant(me.about, m.last)
	if me.lease != me.about {
		wrong = fmt.Sprintf("lease %d is on record after its release", me.about)
	}
	f(m, wrong)
}

func (m thinState) releaseShort(c int, r thinRules, f func(thinState, string)) {
	me, v := &m.clients[c], &m.clients[c].view
	mine := me.phase == thinGives && me.lease == me.about && !me.long
	done := (m.row == v.row || r.innodb && m.row >= 0) && (!m.fat || r.noFat) && (m.thin == me.about || r.anyLease && m.thin != 0) && !v.dead && (!v.watched || r.watchThin)
	wrong := ""
	if done {
		if m.watched {
			wrong = "a watcher misses a release"
		}
		m.thin, m.thinToken = 0, 0
	}
	if !mine {
		f(m, wrong)
		return
	}
	if n := m; n.fault(r) { // the answer is lost, and the client abandons the lease
		n.clients[c].long, n.clients[c].doubt = true, true
		f(n, wrong)
	}
	if !done && !r.noLong {
		me.long = true
		f(m, wrong)
		return
	}
	if why := m.idle(c); wrong == "" {
		wrong = why
	}
	f(m, wrong)
}

func (m *thinState) fault(r thinRules) bool {
	m.faults++
	return m.faults <= r.faults
}

// idle ends the attempt. Its short statement may still arrive.
func (m *thinState) idle(c int) string {
	me := &m.clients[c]
	wrong := ""
	if m.onRecord(me.lease) && m.lives(me.lease) {
		wrong = fmt.Sprintf("lease %d was released, and is on record", me.lease)
	}
	*me = thinClient{tries: me.tries, step: me.step, about: me.about, gives: me.gives, asks: me.asks, view: me.view}
	return wrong
}

// act calls f with what a client can do.
func (m thinState) act(c int, r thinRules, f func(thinState, string)) {
	me := &m.clients[c]
	switch me.phase {
	case thinIdle:
		if me.tries < r.tries[c] && me.step == thinNone {
			lease := int8(c*thinTries) + me.tries + 1
			*me = thinClient{phase: thinAsks, tries: me.tries + 1, lease: lease, about: lease, step: thinSent}
			f(m, "")
		}
	case thinAsks:
		if me.long {
			n := m
			n.clients[c].long = false
			n.acquireLong(r, me.lease)
			f(n, "")
		}
		if me.answer != 0 {
			n := m
			wrong := n.hold(c)
			f(n, wrong)
		}
		if n := m; n.fault(r) { // the answer is lost, or the client gives up: it abandons the lease
			you := &n.clients[c]
			you.phase, you.answer, you.doubt, you.long = thinGives, 0, true, true
			f(n, "")
		}
	case thinHolds, thinLost:
		n := m
		you := &n.clients[c]
		you.phase, you.answer = thinGives, 0
		if you.long = me.step != thinNone; !you.long {
			you.step, you.about, you.gives, you.asks = thinSent, me.lease, true, false
		}
		f(n, "")
	case thinGives:
		if me.long {
			n := m
			n.releaseLong(r, c)
			f(n, n.idle(c))
		}
	}
}

// hold is a grant that arrives. A client whose session has ended knows that by its clock.
func (m *thinState) hold(c int) string {
	me := &m.clients[c]
	token := me.answer
	me.answer = 0
	if me.phase = thinHolds; m.dead[c] {
		me.phase = thinLost
		return ""
	}
	for i := range m.clients {
		if i != c && m.clients[i].phase == thinHolds {
			return fmt.Sprintf("clients %d and %d hold the lock", i, c)
		}
	}
	if token <= m.most {
		return fmt.Sprintf("token %d after %d", token, m.most)
	}
	me.token, m.most = token, token
	return ""
}

func TestThinModel(t *testing.T) {
	t.Parallel()
	twice, three := [thinClients]int8{2, 1, 0}, [thinClients]int8{1, 1, 1}
	for _, c := range []struct {
		name  string
		rules thinRules
		wrong bool
	}{
		{"two clients, one of them twice", thinRules{tries: twice, faults: 2}, false},
		{"three clients", thinRules{tries: three, faults: 1}, false},
		{"InnoDB, two clients, one of them twice", thinRules{innodb: true, tries: twice, faults: 2}, false},
		{"InnoDB, two events", thinRules{innodb: true, tries: twice, happen: 2, faults: 1}, false},
		{"InnoDB, three clients", thinRules{innodb: true, tries: three, faults: 1}, false},
		{"InnoDB, fat locks are not noticed", thinRules{innodb: true, tries: twice, faults: 1, noFat: true}, true},
		{"InnoDB, a row without a number is used", thinRules{innodb: true, tries: twice, happen: 2, noNumber: true}, true},
		{"InnoDB, the row does not tell of tombs", thinRules{innodb: true, tries: twice, faults: 1, oldTombs: true}, true},
		{"InnoDB, tokens do not heed the floor", thinRules{innodb: true, tries: twice, faults: 1, noFloor: true}, true},
		{"InnoDB, the insertion of the row grants", thinRules{innodb: true, tries: twice, faults: 1, insertGets: true}, true},
		{"InnoDB, the row of a thin lock is swept", thinRules{innodb: true, tries: twice, sweepsThin: true}, true},
		{"fat locks are not noticed", thinRules{tries: twice, faults: 1, noFat: true}, true},
		{"a release clears whatever is thin", thinRules{tries: twice, faults: 1, anyLease: true}, true},
		{"an acquisition takes over what is thin", thinRules{tries: twice, over: true}, true},
		{"a lock in both forms", thinRules{tries: twice, both: true}, true},
		{"an inflated lease is not written", thinRules{tries: twice, forgets: true}, true},
		{"a release of what was inflated ends there", thinRules{tries: twice, noLong: true}, true},
		{"a lease in doubt is released like any other", thinRules{tries: twice, faults: 1, noTombs: true}, true},
		{"a statement that waited trusts old tombs", thinRules{tries: twice, faults: 1, oldTombs: true}, true},
		{"tokens do not heed the floor", thinRules{tries: twice, faults: 1, noFloor: true}, true},
		{"the insertion of the row grants", thinRules{tries: twice, faults: 1, insertGets: true}, true},
		{"the row of a thin lock is swept", thinRules{tries: twice, sweepsThin: true}, true},
		{"a watcher does not wait for statements", thinRules{tries: twice, noBarrier: true}, true},
		{"what is thin stays so for a watcher", thinRules{tries: twice, watchThin: true}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n, wrong := leasetest.Explore(thinState{row: -1}, func(m thinState, to func(thinState, string)) { m.next(c.rules, to) })
			t.Logf("%s: %d states; %s", c.name, n, wrong)
			if (wrong != "") != c.wrong {
				t.Errorf("found %q", wrong)
			}
		})
	}
}
