package sqlitelock

import (
	"strings"

	"github.com/holdfast-io/holdfast/internal/waiters"
)

// A notification goes from one backend value to another: what that has to read. It carries no authority:
// the receiver reads the file. A notification may be lost, or arrive twice, or late.
type notification = waiters.Look

// maxNotification is the maximum size of a datagram in bytes. A longer notification becomes one that
// says "everything".
const maxNotification = 8 << 10

func encode(l *notification) []byte {
	var b strings.Builder
	if l.All {
		b.WriteString(waiters.AllLine)
	}
	if l.Events {
		b.WriteString(waiters.EventsLine)
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

// decode decodes what encode wrote. It ignores lines of an unknown kind.
func decode(p []byte) notification {
	var l notification
	for line := range strings.Lines(string(p)) {
		l.Parse(strings.TrimSuffix(line, "\n"))
	}
	return l
}
