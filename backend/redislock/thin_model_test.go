package redislock_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// The two forms of a lock as a small specification, checked over all its states: one lock, and
// clients with a session each, in every order of their requests and answers. Any answer may be
// lost, any request may be late, and a client may give up at any moment. A session may end, the
// lock may be broken, and the data may be lost: one of these happens, once. doc.go describes it in words.
//
// Checked: no client holds the lock while another one does; tokens grow with each grant; and
// a lease that was released is not on record any more.

const modelClients = 3

// modelRules are the parts that can be left out, to see that each is needed.
type modelRules struct {
	attempts [modelClients]int8
	faults   int8 // how many answers are lost, and clients give up or ask again; 0: any number

	unseen       bool // a lock is taken the short way although it is thin already
	both         bool // a lock that was inflated stays thin, too
	byName       bool // a release removes whatever is thin
	noProgram    bool // a release of what is not thin any more is not sent again
	noTombs      bool // a lease in doubt is released like any other
	noQuarantine bool // a server that lost its data grants
	garbage      bool // what is thin is removed although its session lives
}

type modelForm int8

const (
	modelThin modelForm = 1 << iota // as flags, because of the rule both
	modelFat
)

type modelPhase int8

const (
	modelIdle modelPhase = iota
	modelAsking
	modelHolding
	modelBroken // it was told, and has not released it yet
	modelReleasing
)

// modelClient is a client, and what it has on the way.
type modelClient struct {
	phase  modelPhase
	tries  int8
	lease  int8 // of the present attempt
	doubt  bool // an acquire was not answered
	token  int8 // of the grant
	thin   bool // it knows the record
	asks   int8 // the lease that an acquire on the way is for
	asksIn int8 // and its session
	answer int8 // the token of a grant on the way
	isThin bool // and whether it says that it is thin
	zrem   int8 // the token in a ZREM on the way
	free   bool // a release by the program is on the way
}

// modelState is the server and the clients.
type modelState struct { //nolint:recvcheck // a method with a value receiver changes a copy, which is the next state
	form       modelForm
	thin, fat  modelHolder
	queue      [modelClients]int8 // leases
	ctr, most  int8
	tombs      uint16
	dead       [modelClients]bool // sessions that have ended
	session    int8               // the first or the second one, after a loss, of each client
	quarantine bool
	happened   bool
	faults     int8 // counted only if their number is limited
	clients    [modelClients]modelClient
}

type modelHolder struct{ lease, session, token int8 }

const (
	modelTries  = 2
	modelTokens = 20 // only what is wrong already needs more
)

func modelOwner(lease int8) int { return int(lease-1) / modelTries }

func (m *modelState) lives(lease, session int8) bool {
	return session == m.session && !m.dead[modelOwner(lease)]
}

// inflate makes the lock fat, unless the session of its holder is gone.
func (m *modelState) inflate(r modelRules) {
	if m.form&modelThin == 0 {
		return
	}
	if !r.both {
		m.form &^= modelThin
	}
	if m.lives(m.thin.lease, m.thin.session) {
		m.form |= modelFat
		m.fat = m.thin
	}
	if m.form&modelThin == 0 {
		m.thin = modelHolder{}
	}
}

// vacate removes the fat holder, and hands the lock over.
func (m *modelState) vacate(r modelRules) {
	m.form &^= modelFat
	m.fat = modelHolder{}
	m.advance(r)
}

func (m *modelState) advance(r modelRules) {
	for m.form == 0 && m.queue[0] != 0 && (!m.quarantine || r.noQuarantine) {
		lease := m.queue[0]
		m.leave(lease)
		if c := modelOwner(lease); !m.dead[c] {
			m.ctr++
			m.form, m.fat = modelFat, modelHolder{lease, m.session, m.ctr}
			if m.clients[c].lease == lease {
				m.clients[c].answer, m.clients[c].isThin = m.ctr, false
			}
		}
	}
}

func (m *modelState) leave(lease int8) {
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

func (m *modelState) isOnRecord(lease int8) bool {
	return m.form&modelThin != 0 && m.thin.lease == lease || m.form&modelFat != 0 && m.fat.lease == lease || m.waits(lease)
}

func (m *modelState) waits(lease int8) bool {
	for _, l := range m.queue {
		if l == lease {
			return true
		}
	}
	return false
}

// acquire is what the server does with an acquire that waits.
func (m *modelState) acquire(c int, r modelRules) {
	me := &m.clients[c]
	lease, session := me.asks, me.asksIn
	me.asks, me.asksIn = 0, 0
	grant := func(token int8, thin bool) {
		if me.lease == lease {
			me.answer, me.isThin = token, thin
		}
	}
	buried := m.tombs&(1<<lease) != 0
	free := m.form == 0 || r.unseen && m.form == modelThin && m.thin.lease != lease
	if free && m.queue[0] == 0 && m.lives(lease, session) && !buried && (!m.quarantine || r.noQuarantine) {
		m.ctr++
		m.form, m.thin = modelThin, modelHolder{lease, session, m.ctr}
		grant(m.ctr, true)
		return
	}
	if m.form == modelThin && m.thin.lease == lease && m.lives(lease, m.thin.session) {
		if m.thin.session == session {
			grant(m.thin.token, false)
		}
		return
	}
	m.inflate(r)
	switch {
	case m.form&modelFat != 0 && m.fat.lease == lease:
		if m.fat.session == session {
			grant(m.fat.token, false)
		}
	case m.waits(lease), buried, !m.lives(lease, session), m.quarantine:
	default:
		k := 0
		for m.queue[k] != 0 {
			k++
		}
		m.queue[k] = lease
		m.advance(r)
	}
}

// release is what the program does with a release.
func (m *modelState) release(c int, r modelRules) {
	me := &m.clients[c]
	m.inflate(r)
	if me.doubt && !r.noTombs {
		m.tombs |= 1 << me.lease
	}
	m.leave(me.lease)
	if m.form&modelFat != 0 && m.fat.lease == me.lease {
		m.vacate(r)
	}
}

// idle ends the attempt. Its requests and replies may still arrive.
func (m *modelState) idle(c int) string {
	me := &m.clients[c]
	wrong := ""
	if m.isOnRecord(me.lease) {
		wrong = fmt.Sprintf("lease %d was released, and is on record", me.lease)
	}
	*me = modelClient{tries: me.tries, asks: me.asks, asksIn: me.asksIn, zrem: me.zrem}
	return wrong
}

// next calls f with all states that can follow, and the reason why one is wrong.
func (m modelState) next(r modelRules, f func(modelState, string)) {
	for c := range modelClients {
		m.act(c, r, f)
		if !m.dead[c] && m.clients[c].phase != modelHolding && m.clients[c].answer == 0 && !m.happened {
			m.end(c, r, f)
		}
	}
	if r.garbage && m.form == modelThin {
		n := m
		n.form, n.thin = 0, modelHolder{}
		f(n, "")
	}
	if !m.happened && m.form != 0 {
		m.breakIt(r, f)
	}
	if !m.happened {
		n := m
		n.happened, n.quarantine, n.session = true, true, 1
		n.form, n.thin, n.fat, n.queue, n.tombs = 0, modelHolder{}, modelHolder{}, [modelClients]int8{}, 0
		f(n, "")
	}
	if m.quarantine && m.isOver() {
		n := m
		n.quarantine = false
		n.advance(r)
		f(n, "")
	}
}

// fault reports whether one more may occur, and counts it.
func (m *modelState) fault(r modelRules) bool {
	if r.faults == 0 {
		return true
	}
	m.faults++
	return m.faults <= r.faults
}

// isOver reports whether all that was granted before the loss has ended: that takes less than
// the quarantine does.
func (m *modelState) isOver() bool {
	for c := range m.clients {
		if me := &m.clients[c]; me.phase == modelHolding || me.answer != 0 {
			return false
		}
	}
	return true
}

// end ends a session whose client does not believe in it any more.
func (m modelState) end(c int, r modelRules, f func(modelState, string)) {
	m.happened, m.dead[c] = true, true
	for lease := int8(c*modelTries + 1); lease <= int8(c*modelTries+modelTries); lease++ {
		m.leave(lease)
	}
	if m.form&modelFat != 0 && modelOwner(m.fat.lease) == c {
		m.vacate(r)
	}
	f(m, "")
}

// breakIt takes the lock from its holder, and tells that.
func (m modelState) breakIt(r modelRules, f func(modelState, string)) {
	m.happened = true
	m.inflate(r)
	m.ctr++
	if m.form&modelFat != 0 {
		if me := &m.clients[modelOwner(m.fat.lease)]; me.lease == m.fat.lease {
			me.answer = 0
			if me.phase == modelHolding || me.phase == modelAsking {
				me.phase = modelBroken
			}
		}
		m.vacate(r)
	}
	f(m, "")
}

// act calls f with what a client can do, and what becomes of what it has on the way.
func (m modelState) act(c int, r modelRules, f func(modelState, string)) {
	me := &m.clients[c]
	if me.asks != 0 { // it arrives, now or after the client has given up
		n := m
		n.acquire(c, r)
		wrong := ""
		if me.lease != me.asks && n.isOnRecord(me.asks) {
			wrong = fmt.Sprintf("lease %d is on record after its release", me.asks)
		}
		f(n, wrong)
	}
	if me.zrem != 0 {
		m.remove(c, r, f)
	}
	switch me.phase {
	case modelIdle:
		if me.tries < r.attempts[c] && me.asks == 0 {
			n := m
			you := &n.clients[c]
			*you = modelClient{phase: modelAsking, tries: me.tries + 1, lease: int8(c*modelTries) + me.tries + 1, zrem: me.zrem}
			you.asks, you.asksIn = you.lease, m.session
			f(n, "")
		}
	case modelAsking:
		m.awaits(c, r, f)
	case modelHolding, modelBroken:
		n := m
		you := &n.clients[c]
		you.phase, you.answer = modelReleasing, 0
		if you.thin && (!you.doubt || r.noTombs) && you.zrem == 0 {
			you.zrem = you.token
		} else {
			you.free = true
		}
		f(n, "")
		if me.phase == modelHolding { // its lease has expired, and was not released
			if n := m; n.fault(r) {
				n.clients[c].phase = modelBroken
				f(n, "")
			}
		}
	case modelReleasing:
		if me.free {
			n := m
			n.release(c, r)
			f(n, "") // the answer is lost, and the client asks again
			n.clients[c].free = false
			wrong := n.idle(c)
			f(n, wrong)
		} else if n := m; n.fault(r) { // it has waited for long enough, and asks the program
			n.clients[c].free = true
			f(n, "")
		}
	}
}

// awaits is a client that waits for a grant.
func (m modelState) awaits(c int, r modelRules, f func(modelState, string)) {
	me := &m.clients[c]
	if me.answer != 0 {
		n := m
		wrong := n.hold(c)
		f(n, wrong)
		if n := m; n.fault(r) { // it is lost
			n.clients[c].answer, n.clients[c].doubt = 0, true
			f(n, "")
		}
	}
	if n := m; me.asks == 0 && n.fault(r) { // it asks again
		n.clients[c].asks, n.clients[c].asksIn, n.clients[c].doubt = me.lease, m.session, true
		f(n, "")
	}
	if n := m; n.fault(r) { // it gives up
		you := &n.clients[c]
		you.phase, you.answer, you.doubt, you.free = modelReleasing, 0, true, true
		f(n, "")
	}
}

// hold is a grant that arrives.
func (m *modelState) hold(c int) string {
	me := &m.clients[c]
	wrong := ""
	for i := range m.clients {
		if i != c && m.clients[i].phase == modelHolding {
			wrong = fmt.Sprintf("clients %d and %d hold the lock", i, c)
		}
	}
	if me.answer <= m.most && wrong == "" {
		wrong = fmt.Sprintf("token %d after %d", me.answer, m.most)
	}
	m.most = max(m.most, me.answer)
	me.phase, me.token, me.thin = modelHolding, me.answer, me.isThin
	me.answer, me.isThin = 0, false
	return wrong
}

// remove is a ZREM that arrives.
func (m modelState) remove(c int, r modelRules, f func(modelState, string)) {
	n := m
	you := &n.clients[c]
	found := n.form&modelThin != 0 && (n.thin.token == you.zrem || r.byName)
	if found {
		n.form &^= modelThin
		n.thin = modelHolder{}
	}
	mine := you.phase == modelReleasing && you.token == you.zrem && !you.free
	you.zrem = 0
	if lost := n; lost.fault(r) { // the answer
		f(lost, "")
	}
	if !mine {
		return // no client waits for it any more
	}
	if found || r.noProgram {
		wrong := n.idle(c)
		f(n, wrong)
		return
	}
	you.free = true
	f(n, "")
}

func TestThinModel(t *testing.T) {
	t.Parallel()
	alone, three := [modelClients]int8{2, 1, 0}, [modelClients]int8{1, 1, 1}
	for _, c := range []struct {
		name  string
		rules modelRules
		wrong bool
	}{
		{"two clients, one of them twice", modelRules{attempts: alone}, false},
		{"three clients", modelRules{attempts: three, faults: 1}, false},
		{"what is thin is not seen", modelRules{attempts: alone, unseen: true}, true},
		{"a lock in both forms", modelRules{attempts: alone, both: true}, true},
		{"a release removes whatever is thin", modelRules{attempts: alone, byName: true}, true},
		{"a release of what was inflated ends there", modelRules{attempts: alone, noProgram: true}, true},
		{"a lease in doubt is released like any other", modelRules{attempts: alone, noTombs: true}, true},
		{"no quarantine", modelRules{attempts: alone, noQuarantine: true}, true},
		{"what is thin is garbage", modelRules{attempts: alone, garbage: true}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n, wrong := leasetest.Explore(modelState{}, func(m modelState, to func(modelState, string)) {
				m.next(c.rules, func(n modelState, why string) {
					if why != "" || n.ctr <= modelTokens {
						to(n, why)
					}
				})
			})
			t.Logf("%s: %d states; %s", c.name, n, wrong)
			if (wrong != "") != c.wrong {
				t.Errorf("found %q", wrong)
			}
		})
	}
}
