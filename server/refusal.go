package server

import (
	"sync"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// Bounds of a refusal, whatever the lock holds. A byte of a lock's name, an owner or a note
// takes up to six bytes in JSON.
const (
	// refusalBytes bounds the holders in one refusal, so that the whole refusal is at most 32
	// KiB: the rest of it names the lock twice and an owner once.
	refusalBytes = 24 << 10
	// batchBytes bounds the holders in all refusals of a batch. When it is used up, a refusal
	// has one holder, without its note.
	batchBytes = 32 << 10
	// holderFrame is an upper bound for the part of a holder that does not depend on texts.
	holderFrame = 320
)

// jsonSize returns an upper bound for the bytes that the text takes in JSON as encode writes
// it.
func jsonSize(s string) int {
	n := len(s)
	for i := range len(s) {
		switch c := s[i]; {
		case c < 0x20, c == '<', c == '>', c == '&':
			n += 5
		case c == '"', c == '\\':
			n++
		case c == 0xe2: // U+2028 and U+2029 are escaped
			n += 3
		}
	}
	return n
}

func holderSize(h wire.Holder) int {
	return holderFrame + len(h.Lease) + jsonSize(h.Owner) + jsonSize(h.Note)
}

// fitting returns the first holders that together take at most so many bytes, and how many
// bytes they take.
func fitting(hs []wire.Holder, most int) ([]wire.Holder, int) {
	size := 0
	for i, h := range hs {
		n := holderSize(h)
		if size+n > most {
			return hs[:i], size
		}
		size += n
	}
	return hs, size
}

// allowance is what is left for the holders in the refusals of one batch.
type allowance struct {
	mu   sync.Mutex
	left int
}

// trim cuts the holders of a refusal to what the allowance permits.
func (a *allowance) trim(p *wire.Problem) {
	a.mu.Lock()
	defer a.mu.Unlock()
	some, size := fitting(p.Holders, a.left)
	if len(some) > 0 || len(p.Holders) == 0 {
		a.left -= size
		p.Holders = some
		return
	}
	a.left = 0 // a later refusal gets no more than an earlier one
	one := p.Holders[0]
	one.Note = ""
	p.Holders = []wire.Holder{one}
	p.Detail = backend.ErrHeld.Error()
}

// conceal removes from a refusal what the caller may not see.
func (s *Server) conceal(r *request, name string, p wire.Problem) wire.Problem {
	if len(p.Holders) > 0 {
		s.viewOf(r, name).hideHolders(p.Holders)
	}
	return p
}
