package k8slock_test

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// forgottenWrites: nothing is remembered of locks whose last write had an unknown outcome and that
// are no longer in use.
func forgottenWrites(b *bench) {
	p := b.process(time.Minute)
	const locks = 8
	for i := range locks {
		name := "a" + strconv.Itoa(i)
		p.wire.set(once(http.MethodPut, name, replyLost))
		req := p.ask(name)
		if _, err := p.Acquire(b.Context(), req); !mayHold(err) {
			b.Fatalf("Acquire whose answer is lost: %v", err)
		}
		if p.Writers() == 0 {
			b.Fatal("a write in doubt is forgotten before it is known what became of it")
		}
		p.holders(name, req)
	}
	b.until("forgotten", func() bool { return p.Writers() == 0 })
}

// strangeSession: a session is bound to the value that opened it. Another value that knows its ID
// can neither continue nor end it, and takes nothing from it.
func strangeSession(b *bench) {
	p, q := b.process(time.Minute), b.process(time.Minute)
	req, grant := p.take("a")
	next, got := q.wait("a")
	if err := q.OpenSession(b.Context(), backend.SessionRequest{ID: p.id, TTL: time.Minute}); !errors.Is(err, backend.ErrSessionLost) {
		b.Errorf("OpenSession of another value's session: %v; it has to be ErrSessionLost", err)
	}
	if res, err := q.Renew(b.Context(), backend.RenewRequest{Session: p.id}); err != nil || !res.SessionLost {
		b.Errorf("Renew of another value's session: %+v, %v", res, err)
	}
	other := q.ask("b")
	other.Session = p.id
	if _, err := q.Acquire(b.Context(), other); !errors.Is(err, backend.ErrSessionLost) {
		b.Errorf("Acquire under another value's session: %v", err)
	}
	if err := q.EndSession(b.Context(), p.id); err != nil {
		b.Errorf("EndSession of another value's session: %v", err)
	}
	// The owner still has it, with what it holds, and no other client was granted the lock.
	if res, err := p.Renew(b.Context(), backend.RenewRequest{Session: p.id}); err != nil || res.SessionLost {
		b.Errorf("the owner renews: %+v, %v", res, err)
	}
	if again, err := p.Acquire(b.Context(), req); err != nil || again.Token != grant.Token {
		b.Errorf("the owner asks again: %+v, %v; its grant was %+v", again, err, grant)
	}
	p.holders("a", req)
	p.give(req)
	if g := soon(b, "the next", got); g.err != nil {
		b.Fatal(g.err)
	}
	q.holders("a", next)
}
