package pglock

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// letter is what one backend value tells another one, in notifications: leases that are
// out, and what there is to look at. It is sent with the commit, so what it says was
// true then.
type letter struct {
	all      bool // look at everything
	leases   map[leaseKey]struct{}
	sessions map[backend.SessionID]struct{}
	ended    []*lease // of the sender: their leases, in the order of their news
}

func (l *letter) lease(x *lease) { l.ended = append(l.ended, x) }

func (l *letter) session(id backend.SessionID) {
	if l.sessions == nil {
		l.sessions = make(map[backend.SessionID]struct{})
	}
	l.sessions[id] = struct{}{}
}

func (l *letter) lookAt(k leaseKey) {
	if l.leases == nil {
		l.leases = make(map[leaseKey]struct{})
	}
	l.leases[k] = struct{}{}
}

// The first bytes of the lines of a letter. Names and IDs have no control characters,
// so a line ends with a line feed, and a field with a tab.
const (
	lineHello   = 'h' // sent by a value to itself: notifications come
	lineGrant   = 'g' // lease, session, place, token, since, joined, name
	lineLease   = 'l' // lease, name: look at it
	lineSession = 's' // session: look at it
)

// maxPayload is less than what PostgreSQL takes, 8000 bytes.
const maxPayload = 7900

// encode makes payloads of it, in order.
func (l *letter) encode() []string {
	var lines []string
	for _, x := range l.ended {
		if x.state != held || x.timed {
			lines = append(lines, string(lineLease)+string(x.id)+"\t"+x.lock.name+"\n")
			continue
		}
		fields := []string{
			string(lineGrant) + string(x.id), string(x.sessionID()), strconv.FormatInt(x.place, 10), strconv.FormatInt(x.token, 10),
			strconv.FormatInt(x.since.UnixMicro(), 10), strconv.FormatBool(x.joined), x.lock.name,
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

// news is a lease that is out, as a letter tells it.
type news struct {
	key     leaseKey
	session backend.SessionID
	place   int64
	grant   backend.Grant
}

// decodeLetter reads a payload: what to look at, what is out, and whether it is the
// echo. Lines that it does not know say nothing.
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
				look.lookAt(leaseKey{fields[1], backend.LeaseID(fields[0])})
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
		key: leaseKey{fields[6], backend.LeaseID(fields[0])}, session: backend.SessionID(fields[1]), place: place,
		grant: backend.Grant{Token: token(n), Since: time.UnixMicro(since), Waited: true, Joined: joined},
	}, true
}

func token(n int64) fence.Token { return fence.Token(n) } //nolint:gosec // numbers count up from 0

// behind is greater than every text with the prefix that a name may be.
func behind(prefix string) string { return prefix + strings.Repeat("\U0010ffff", backend.MaxNameLen/4) }

// eventText is an event as it is sent.
type eventText struct {
	N      int       `json:"n"` // within the transaction: no two texts of one are the same
	Kind   string    `json:"kind"`
	Name   string    `json:"name"`
	Lease  string    `json:"lease"`
	Owner  string    `json:"owner,omitempty"`
	Mode   uint8     `json:"mode,omitempty"`
	Token  uint64    `json:"token,omitempty"`
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at"`
}

func encodeEvent(n int, e backend.Event) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)  // so that a text is at most twice as long as its parts
	_ = enc.Encode(eventText{ // nothing in it can fail
		n, string(e.Kind), e.Name, string(e.Lease), e.Owner, uint8(e.Mode), uint64(e.Token), e.Reason, e.At,
	})
	return b.String()
}

func decodeEvent(payload string) (backend.Event, bool) {
	var t eventText
	if err := json.Unmarshal([]byte(payload), &t); err != nil {
		return backend.Event{}, false
	}
	return backend.Event{
		Kind: backend.EventKind(t.Kind), Name: t.Name, Lease: backend.LeaseID(t.Lease), Owner: t.Owner, Mode: backend.Mode(t.Mode),
		Token: fence.Token(t.Token), Reason: t.Reason, At: t.At,
	}, true
}
