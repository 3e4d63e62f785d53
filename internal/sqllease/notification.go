package sqllease

import (
	"maps"
	"slices"
	"strconv"
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
	lineGrant = 'g' // lease, session, place, token, since, name
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
		fields := []string{
			string(lineGrant) + string(x.ID), string(sessionOf(x)), strconv.FormatInt(x.Own.place, 10), strconv.FormatUint(uint64(x.Token), 10),
			strconv.FormatInt(x.Since.UnixMicro(), 10), x.Lock.Name,
		}
		lines = append(lines, strings.Join(fields, "\t")+"\n")
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
	key     Key
	session backend.SessionID
	place   int64
	grant   backend.Grant
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
			if n, ok := decodeGrant(strings.Split(line[1:], "\t")); ok {
				granted = append(granted, n)
			}
		default:
			look.Parse(line)
		}
	}
	return look, granted, hello
}

func decodeGrant(fields []string) (news, bool) {
	const all = 6
	if len(fields) != all {
		return news{}, false
	}
	place, errPlace := strconv.ParseInt(fields[2], 10, 64)
	n, errToken := strconv.ParseInt(fields[3], 10, 64)
	since, errSince := strconv.ParseInt(fields[4], 10, 64)
	if errPlace != nil || errToken != nil || errSince != nil || n <= 0 {
		return news{}, false
	}
	return news{
		key: Key{Name: fields[5], ID: backend.LeaseID(fields[0])}, session: backend.SessionID(fields[1]), place: place,
		grant: backend.Grant{Token: token(n), Since: time.UnixMicro(since), Waited: true},
	}, true
}

func token(n int64) fence.Token { return fence.Token(n) } //nolint:gosec // numbers count up from 0

// Read acts on a notification, and reports whether it is the value's own Hello.
func (b *Leases) Read(payload string) bool {
	look, granted, hello := decodeNotification(payload)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range granted {
		for _, w := range b.calls.Of(n.key) {
			if w.Timed || !w.Own.inQueue || w.Session != n.session {
				look.Lease(n.key)
			} else if n.place > w.Own.place { // otherwise it is about another time in the queue
				n.grant.Asked = w.Own.asked
				w.Give(waiters.Verdict{Grant: n.grant})
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
