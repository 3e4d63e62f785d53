package leasetest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// Gate keeps grants from reaching the database: the client that makes the row of a lease has
// the lock and the token by then, and waits before the commit.
type Gate struct {
	Shut, Open func()
	Reached    func() bool  // a grant waits
	Asked      func() int64 // how many statements the breaking client has sent, or fewer
}

// BreakBesideAGrant (C10): other breaks a lock that b has acquired, while the grant is on its
// way into the database, where it is not visible. The break waits for it, or fails: its token
// is above that of the grant, which must not outlive it.
func BreakBesideAGrant(t *testing.T, b, other backend.Backend, gate Gate) {
	t.Helper()
	if _, err := other.Break(Within(t), backend.BreakRequest{Name: "nobody's"}); err != nil { // it is connected then
		t.Fatal(err)
	}
	held := Ask("n", Session(t, b, time.Hour, nil))
	gate.Shut()
	granted := Start(t, b, held)
	Eventually(t, "the grant is on its way", gate.Reached)

	type broken struct {
		res backend.BreakResult
		err error
	}
	ctx, before := Within(t), gate.Asked()
	first := make(chan broken, 1)
	go func() {
		res, err := other.Break(ctx, backend.BreakRequest{Name: "n"})
		first <- broken{res, err}
	}()
	// A break that does not wait returns after two reads.
	const many = 10
	var got broken
	over := false
	Eventually(t, "the break waits, or ends", func() bool {
		select {
		case got = <-first:
			over = true
		default:
		}
		return over || gate.Asked() >= before+many
	})
	if over && got.err == nil {
		t.Errorf("the break has returned, and has not found the grant that is on its way: %+v", got.res)
	}
	gate.Open()
	if !over {
		got = <-first
	}
	if got.err != nil { // so its outcome is unknown
		if no, ok := errors.AsType[*backend.UnavailableError](got.err); !ok || !no.MayHold {
			t.Errorf("the break failed: %v; want that it may have worked", got.err)
		}
		if got.res, got.err = other.Break(Within(t), backend.BreakRequest{Name: "n"}); got.err != nil {
			t.Fatalf("the break, once more: %v", got.err)
		}
	}
	info, err := other.Inspect(Within(t), "n")
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range info.Holders {
		if h.Token < got.res.Token {
			t.Errorf("after a break with token %d the lock has the holder %+v", got.res.Token, h)
		}
	}
	answer := <-granted
	switch {
	case answer.Err != nil && !errors.Is(answer.Err, backend.ErrLost):
		t.Errorf("Acquire: %v; want a grant, or that the lease is lost", answer.Err)
	case answer.Err == nil && answer.Grant.Token >= got.res.Token:
		t.Errorf("token %d was not drawn when the lock was broken with token %d: the gate is in the wrong place", answer.Grant.Token, got.res.Token)
	}
	if !slices.ContainsFunc(got.res.Broken, func(h backend.Holder) bool { return h.Lease == held.Lease }) {
		t.Errorf("the break does not name the lease that it took: %+v", got.res)
	}
}
