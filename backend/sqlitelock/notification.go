package sqlitelock

import (
	"strings"

	"github.com/holdfast-io/holdfast/internal/waiters"
)

// A notification goes from one backend value to another: what that has to read. It carries no authority:
// the receiver reads the file. A notification may be lost, or arrive twice, or late.
type notification struct {
	waiters.Look
	events bool
}

// The lines of a notification besides those of a Look.
const (
	allLine    = "*\n" // whatever concerns the receiver
	eventsLine = "e\n" // the events since the last that it has
)

// maxNotification is the maximum size of a datagram in bytes.
const maxNotification = 8 << 10

// parse adds what the lines ask for. It ignores those of an unknown kind.
func (l *notification) parse(lines string) {
	for line := range strings.Lines(lines) {
		switch line {
		case allLine:
			l.All = true
		case eventsLine:
			l.events = true
		default:
			l.Parse(strings.TrimSuffix(line, "\n"))
		}
	}
}

// add adds what another notification asks for.
func (l *notification) add(o *notification) {
	l.Add(&o.Look)
	l.events = l.events || o.events
}

// notify adds a line to the notification of another backend value, which may be this one. A notification that is
// too long asks for everything instead.
func (t *txn) notify(addr, line string) {
	if addr == "" || addr == t.b.addr {
		return
	}
	lines := t.notifications[addr] + line
	if len(lines) > maxNotification {
		lines = allLine
	}
	t.notifications[addr] = lines
}
