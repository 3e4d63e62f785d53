package sqlitelock

import (
	"bytes"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
)

// letter is a notification from one backend value to another: what that has to read. It carries
// no authority: the receiver reads the file. A notification may be lost, or arrive twice, or
// late.
type letter struct {
	all      bool // everything
	events   bool
	leases   map[leaseKey]struct{}
	sessions map[backend.SessionID]struct{}
}

// maxLetter is the maximum size of a datagram in bytes. A longer notification becomes one that
// says "everything".
const maxLetter = 8 << 10

func (l *letter) empty() bool {
	return !l.all && !l.events && len(l.leases) == 0 && len(l.sessions) == 0
}

// add adds the content of x to l.
func (l *letter) add(x letter) {
	l.all = l.all || x.all
	l.events = l.events || x.events
	if len(x.leases) > 0 && l.leases == nil {
		l.leases = make(map[leaseKey]struct{})
	}
	for k := range x.leases {
		l.leases[k] = struct{}{}
	}
	if len(x.sessions) > 0 && l.sessions == nil {
		l.sessions = make(map[backend.SessionID]struct{})
	}
	for id := range x.sessions {
		l.sessions[id] = struct{}{}
	}
}

// The first bytes of the lines of a notification. Names and IDs have no control characters, so a
// line ends with a line feed, and an ID with a tab.
const (
	lineAll     = '*'
	lineEvents  = 'e'
	lineLease   = 'l'
	lineSession = 's'
)

func (l *letter) encode() []byte {
	var b bytes.Buffer
	if l.all {
		b.WriteString("*\n")
	}
	if l.events {
		b.WriteString("e\n")
	}
	for k := range l.leases {
		b.WriteByte(lineLease)
		b.WriteString(string(k.id))
		b.WriteByte('\t')
		b.WriteString(k.name)
		b.WriteByte('\n')
	}
	for id := range l.sessions {
		b.WriteByte(lineSession)
		b.WriteString(string(id))
		b.WriteByte('\n')
	}
	if b.Len() > maxLetter {
		return []byte("*\n")
	}
	return b.Bytes()
}

// decodeLetter decodes what encode wrote. It ignores lines of an unknown kind.
func decodeLetter(p []byte) letter {
	var l letter
	for line := range strings.Lines(string(p)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		switch rest := line[1:]; line[0] {
		case lineAll:
			l.all = true
		case lineEvents:
			l.events = true
		case lineLease:
			if id, name, ok := strings.Cut(rest, "\t"); ok {
				l.add(letter{leases: map[leaseKey]struct{}{{name, backend.LeaseID(id)}: {}}})
			}
		case lineSession:
			l.add(letter{sessions: map[backend.SessionID]struct{}{backend.SessionID(rest): {}}})
		}
	}
	return l
}
