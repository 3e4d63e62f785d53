package waiters

import (
	"strings"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// Look is what a notification asks its receiver to read. The zero value asks for nothing.
type Look struct {
	All      bool // whatever concerns the receiver
	Leases   map[lockstate.Key]struct{}
	Sessions map[backend.SessionID]struct{}
}

// The first bytes of the lines of a notification. Names and IDs have no control characters, so a line
// ends with a line feed, and a field with a tab. A store adds lines of other kinds.
const (
	lineLease   = 'l' // lease, name
	lineSession = 's' // session
)

// Empty reports whether there is nothing to read.
func (l *Look) Empty() bool { return !l.All && len(l.Leases) == 0 && len(l.Sessions) == 0 }

// Lease adds a lease.
func (l *Look) Lease(k lockstate.Key) {
	if l.Leases == nil {
		l.Leases = make(map[lockstate.Key]struct{})
	}
	l.Leases[k] = struct{}{}
}

// Session adds a session.
func (l *Look) Session(id backend.SessionID) {
	if l.Sessions == nil {
		l.Sessions = make(map[backend.SessionID]struct{})
	}
	l.Sessions[id] = struct{}{}
}

// Add adds what another notification asks for.
func (l *Look) Add(o *Look) {
	l.All = l.All || o.All
	for k := range o.Leases {
		l.Lease(k)
	}
	for id := range o.Sessions {
		l.Session(id)
	}
}

// LeaseLine asks for a lease.
func LeaseLine(k lockstate.Key) string {
	return string(lineLease) + string(k.ID) + "\t" + k.Name + "\n"
}

// SessionLine asks for a session.
func SessionLine(id backend.SessionID) string { return string(lineSession) + string(id) + "\n" }

// Parse adds what a line asks for, without its line feed. It ignores lines of an unknown kind.
func (l *Look) Parse(line string) {
	if line == "" {
		return
	}
	switch rest := line[1:]; line[0] {
	case lineLease:
		if id, name, ok := strings.Cut(rest, "\t"); ok {
			l.Lease(lockstate.Key{Name: name, ID: backend.LeaseID(id)})
		}
	case lineSession:
		l.Session(backend.SessionID(rest))
	}
}
