package sqlitelock

import (
	"strings"

	"github.com/holdfast-io/holdfast/internal/waiters"
)

// notification is a notification from one backend value to another: what that has to read. It carries
// no authority: the receiver reads the file. A notification may be lost, or arrive twice, or
// late.
type notification struct {
	waiters.Look

	events bool
}

// maxNotification is the maximum size of a datagram in bytes. A longer notification becomes one that
// says "everything".
const maxNotification = 8 << 10

// lineEvents is the line of a notification that asks for events.
const lineEvents = "e"

// Empty reports whether there is nothing to read.
func (l *notification) Empty() bool { return !l.events && l.Look.Empty() }

// add adds the content of x to l.
func (l *notification) add(x *notification) {
	l.events = l.events || x.events
	l.Add(&x.Look)
}

func (l *notification) encode() []byte {
	var b strings.Builder
	if l.All {
		b.WriteString(waiters.AllLine)
	}
	if l.events {
		b.WriteString(lineEvents + "\n")
	}
	for k := range l.Leases {
		b.WriteString(waiters.LeaseLine(k))
	}
	for id := range l.Sessions {
		b.WriteString(waiters.SessionLine(id))
	}
	if b.Len() > maxNotification {
		return []byte(waiters.AllLine)
	}
	return []byte(b.String())
}

// decodeNotification decodes what encode wrote. It ignores lines of an unknown kind.
func decodeNotification(p []byte) notification {
	var l notification
	for line := range strings.Lines(string(p)) {
		if line = strings.TrimSuffix(line, "\n"); strings.HasPrefix(line, lineEvents) {
			l.events = true
		} else {
			l.Parse(line)
		}
	}
	return l
}
