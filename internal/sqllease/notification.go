package sqllease

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

// notification is a notification to another backend value: leases that were granted, and what to read. It
// is sent with the commit, so its content was true then.
type notification struct {
	early bool     // it may arrive before its subject survives a crash, so the receiver reads
	ended []*lease // of the receiver's waiters, in the order of their changes
	look  waiters.Look
}

// The first bytes of the lines of a notification besides those of a Look.
const (
	lineHello = 'h' // sent by a value to itself: notifications arrive
	lineGrant = 'g' // and news, as JSON
)

// maxPayload is less than PostgreSQL's limit for a notification, 8000 bytes.
const maxPayload = 7900

// encode encodes the notification as payloads, in order.
func (l *notification) encode() []string {
	var lines []string
	for _, x := range l.ended {
		if x.State != lockstate.Held || x.Timed || l.early {
			lines = append(lines, waiters.LeaseLine(x.Key()))
			continue
		}
		text, _ := json.Marshal(news{x.ID, sessionOf(x), x.Lock.Name, x.Token, x.Since}) // it cannot fail
		lines = append(lines, string(lineGrant)+string(text)+"\n")
	}
	for _, id := range slices.Sorted(maps.Keys(l.look.Sessions)) {
		lines = append(lines, waiters.SessionLine(id))
	}
	var payloads []string
	var b strings.Builder
	for _, line := range lines {
		if b.Len()+len(line) > maxPayload {
			payloads = append(payloads, b.String())
			b.Reset()
		}
		b.WriteString(line)
	}
	return append(payloads, b.String())
}

// news is a granted lease as a notification reports it.
type news struct {
	Lease   backend.LeaseID
	Session backend.SessionID
	Name    string
	Token   fence.Token // and the place among the holders
	Since   time.Time
}

// decodeNotification decodes a payload. It returns what to read, which leases were granted, and whether
// the payload is Hello. It ignores lines of an unknown kind.
func decodeNotification(payload string) (waiters.Look, []news, bool) {
	var look waiters.Look
	var granted []news
	hello := false
	for line := range strings.Lines(payload) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, Hello):
			hello = true
		case strings.HasPrefix(line, string(lineGrant)):
			var n news
			if json.Unmarshal([]byte(line[1:]), &n) == nil {
				granted = append(granted, n)
			}
		default:
			look.Parse(line)
		}
	}
	return look, granted, hello
}

func token(n int64) fence.Token { return fence.Token(n) } //nolint:gosec // numbers count up from 0

// Read acts on a notification, and reports whether it is the value's own Hello.
func (b *Leases) Read(payload string) bool {
	look, granted, hello := decodeNotification(payload)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range granted {
		k := Key{Name: n.Name, ID: n.Lease}
		for _, w := range b.calls.Of(k) {
			if w.Timed || !w.Own.inQueue || w.Session != n.Session {
				look.Lease(k)
			} else if n.Token > token(w.Own.place) { // otherwise it is about another time in the queue
				w.Give(waiters.Verdict{Grant: backend.Grant{Token: n.Token, Asked: w.Own.asked, Since: n.Since, Waited: true}})
			}
		}
	}
	maps.DeleteFunc(look.Leases, func(k Key, _ struct{}) bool { return len(b.calls.Of(k)) == 0 })
	if !look.Empty() {
		b.look.Add(&look)
		waiters.Signal(b.toLook)
	}
	return hello
}

// Hello is a notification without content. A value sends it to itself to find out whether
// notifications arrive.
const Hello = string(lineHello)

// Hearing sets whether notifications arrive from now on, and has everything read, because earlier
// notifications are lost. One of them may have been about a place in the queue, or a session,
// that is committed while the reply is still in transit. Those are read when the reply is here.
func (b *Leases) Hearing(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hearing = on
	for _, k := range b.calls.Leases() {
		b.look.Lease(k)
	}
	for _, id := range b.calls.Listened() {
		b.look.Session(id)
	}
	b.look.All = true
	waiters.Signal(b.toLook)
}

// Behind returns a text greater than every valid name with the prefix.
func Behind(prefix string) string { return prefix + strings.Repeat("\U0010ffff", backend.MaxNameLen/4) }
