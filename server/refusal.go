package server

import (
	"errors"
	"sync"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// What a refusal may carry, whatever the lock holds. A lock's name, an owner and a note
// take up to six bytes in JSON for each of their own.
const (
	// refusalBytes bounds the holders in one refusal, so that all of it is at most 32 KiB:
	// the rest names the lock twice and an owner once.
	refusalBytes = 24 << 10
	// batchBytes bounds the holders in all refusals of a batch. What is refused when they
	// are spent has one holder, without its note.
	batchBytes = 32 << 10
	// holderFrame is more than the part of a holder takes that does not depend on texts.
	holderFrame = 320
)

// jsonSize is how many bytes the text takes in JSON as put writes it, at most.
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

// fitting returns the first holders that take no more than so many bytes together, and
// how many bytes they take.
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

// allowance is what the refusals of one batch may still spend on holders.
type allowance struct {
	mu   sync.Mutex
	left int
}

// trim cuts the holders of a refusal to what is left.
func (a *allowance) trim(p *wire.Problem) {
	a.mu.Lock()
	defer a.mu.Unlock()
	some, size := fitting(p.Holders, a.left)
	if len(some) > 0 || len(p.Holders) == 0 {
		a.left -= size
		p.Holders = some
		return
	}
	a.left = 0 // who comes late gets no more than who came before
	one := p.Holders[0]
	one.Note = ""
	p.Holders = []wire.Holder{one}
	p.Detail = backend.ErrHeld.Error()
}

// hidesLeases reports whether a caller is not told the lease IDs of the lock, because it may
// not break it: under the ID of another client's lease it could renew and release that.
func (s *Server) hidesLeases(r *request, name string) bool {
	return s.cfg.Authorize != nil && s.cfg.Authorize(r.Request, Action{Verb: Break, Name: name}) != nil
}

// withoutLeases takes the lease IDs out.
func withoutLeases(hs []wire.Holder) {
	for i := range hs {
		hs[i].Lease = ""
	}
}

// conceal takes the lease IDs out of a refusal that the caller may not see.
func (s *Server) conceal(r *request, name string, p wire.Problem) wire.Problem {
	if len(p.Holders) > 0 && s.hidesLeases(r, name) {
		withoutLeases(p.Holders)
	}
	return p
}

// errNotYours is for a lease that another principal was granted here.
var errNotYours = errors.New("the lease is another client's")
