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
)

// letter is a notification from one backend value to another: leases that were granted, and what
// to read. It is sent with the commit, so its content was true then.
type letter struct {
	all      bool // read everything
	early    bool // it may arrive before its subject survives a crash, so the receiver reads
	leases   map[Key]struct{}
	sessions map[backend.SessionID]struct{}
	ended    []*lease // used by the sender: leases of the receiver's waiters, in the order of their changes
}

func (l *letter) lease(x *lease) { l.ended = append(l.ended, x) }

func (l *letter) session(id backend.SessionID) {
	if l.sessions == nil {
		l.sessions = make(map[backend.SessionID]struct{})
	}
	l.sessions[id] = struct{}{}
}

func (l *letter) lookAt(k Key) {
	if l.leases == nil {
		l.leases = make(map[Key]struct{})
	}
	l.leases[k] = struct{}{}
}

// The first bytes of the lines of a notification. Names and IDs have no control characters, so a
// line ends with a line feed, and a field with a tab.
const (
	lineHello   = 'h' // sent by a value to itself: notifications arrive
	lineGrant   = 'g' // lease, session, place, token, since, joined, name
	lineLease   = 'l' // lease, name: read it
	lineSession = 's' // session: read it
)

// maxPayload is less than PostgreSQL's limit for a notification, 8000 bytes.
const maxPayload = 7900

// encode encodes the notification as payloads, in order.
func (l *letter) encode() []string {
	var lines []string
	for _, x := range l.ended {
		if x.State != lockstate.Held || x.Timed || l.early {
			lines = append(lines, string(lineLease)+string(x.ID)+"\t"+x.Lock.Name+"\n")
			continue
		}
		fields := []string{
			string(lineGrant) + string(x.ID), string(sessionOf(x)), strconv.FormatInt(x.Own.place, 10), strconv.FormatUint(uint64(x.Token), 10),
			strconv.FormatInt(x.Since.UnixMicro(), 10), strconv.FormatBool(x.Joined), x.Lock.Name,
		}
		lines = append(lines, strings.Join(fields, "\t")+"\n")
	}
	for _, id := range slices.Sorted(maps.Keys(l.sessions)) {
		lines = append(lines, string(lineSession)+string(id)+"\n")
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

// decodeLetter decodes a payload. It returns what to read, which leases were granted, and whether
// the payload is Hello. It ignores lines of an unknown kind.
func decodeLetter(payload string) (letter, []news, bool) {
	var look letter
	var granted []news
	hello := false
	for line := range strings.Lines(payload) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		fields := strings.Split(line[1:], "\t")
		switch line[0] {
		case lineHello:
			hello = true
		case lineGrant:
			if n, ok := decodeGrant(fields); ok {
				granted = append(granted, n)
			}
		case lineLease:
			if len(fields) == 2 {
				look.lookAt(Key{fields[1], backend.LeaseID(fields[0])})
			}
		case lineSession:
			look.session(backend.SessionID(fields[0]))
		}
	}
	return look, granted, hello
}

func decodeGrant(fields []string) (news, bool) {
	const all = 7
	if len(fields) != all {
		return news{}, false
	}
	place, errPlace := strconv.ParseInt(fields[2], 10, 64)
	n, errToken := strconv.ParseInt(fields[3], 10, 64)
	since, errSince := strconv.ParseInt(fields[4], 10, 64)
	joined, errJoined := strconv.ParseBool(fields[5])
	if errPlace != nil || errToken != nil || errSince != nil || errJoined != nil || n <= 0 {
		return news{}, false
	}
	return news{
		key: Key{fields[6], backend.LeaseID(fields[0])}, session: backend.SessionID(fields[1]), place: place,
		grant: backend.Grant{Token: token(n), Since: time.UnixMicro(since), Waited: true, Joined: joined},
	}, true
}

func token(n int64) fence.Token { return fence.Token(n) } //nolint:gosec // numbers count up from 0

// Read acts on a notification, and reports whether it is the value's own Hello.
func (b *Leases) Read(payload string) bool {
	look, granted, hello := decodeLetter(payload)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range granted {
		for _, w := range b.waiting[n.key] {
			if w.timed || !w.inLine || w.session != n.session {
				look.lookAt(n.key)
			} else if n.place > w.place { // otherwise it is about another time in the queue
				n.grant.Asked = w.asked
				w.give(verdict{grant: n.grant})
			}
		}
	}
	for k := range look.leases {
		if len(b.waiting[k]) > 0 {
			b.look.lookAt(k)
		}
	}
	for id := range look.sessions {
		b.look.session(id)
	}
	if len(look.leases)+len(look.sessions) > 0 {
		kick(b.toLook)
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
	for k := range b.waiting {
		b.look.lookAt(k)
	}
	for id := range b.sessions {
		b.look.session(id)
	}
	b.look.all = true
	kick(b.toLook)
}

// Behind returns a text greater than every valid name with the prefix.
func Behind(prefix string) string { return prefix + strings.Repeat("\U0010ffff", backend.MaxNameLen/4) }
