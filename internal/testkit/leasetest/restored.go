package leasetest

import (
	"context"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// Restored (C2): the data of a store goes back to an old copy, as a backup that is restored. Tokens rise all the
// same: of a lock that the copy has, of one that it does not have, of a grant and of a break, and for a
// backend value that was open all the time. copied makes the copy, and returns what puts it back.
func Restored(t *testing.T, open func() backend.Backend, copied func() func()) {
	t.Helper()
	last := make(map[string]fence.Token)
	take := func(b backend.Backend, name string) {
		t.Helper()
		token := Take(t, b, Ask(name, Session(t, b, Long, nil)))
		res, err := Insist(t, func(ctx context.Context) (backend.BreakResult, error) { // a connection may have ended with the server
			return b.Break(ctx, backend.BreakRequest{Name: name})
		})
		if err != nil {
			t.Fatal(err)
		}
		if token <= last[name] || res.Token <= token {
			t.Errorf("%q: token %d and then %d of a break, after %d", name, token, res.Token, last[name])
		}
		last[name] = res.Token
	}
	b := open()
	take(b, "old")
	restore := copied()
	for range 3 {
		take(b, "old")
		take(b, "new")
	}
	restore()
	for range 2 {
		take(b, "old")
		take(b, "new")
		b = open()
	}
}
