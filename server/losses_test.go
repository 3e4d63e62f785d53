package server_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

func (a *api) losses(header ...string) []wire.Loss {
	a.t.Helper()
	return want[wire.Losses](a, 200, "GET", "/v1/losses", "", header...).Losses
}

// After an incident the server still knows which locks were broken through it, also without an event stream, and each
// loss once. What expires is known only while there is a stream.
func TestLosses(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	if l := a.losses(); len(l) != 0 {
		t.Fatalf("a new server knows of %+v", l)
	}
	first := a.take("x", `{"owner":"ann"}`)
	want[wire.Break](a, 200, "DELETE", lockPath("x")+"?reason=it+hangs", "")
	known := a.losses()
	if len(known) != 1 || known[0].Kind != "broken" || known[0].Name != "x" || known[0].Owner != "ann" || known[0].Token != first.Token ||
		known[0].Lease != first.Lease || known[0].Reason != "it hangs" || time.Since(known[0].At.Time) > time.Minute {
		t.Errorf("after a break: %+v", known)
	}
	if p := want[wire.Problem](a, 410, "PUT", lockPath("x")+"/leases/"+first.Lease, `{}`); p.Cause != "broken" || p.Reason != "it hangs" {
		t.Errorf("the holder is told %+v", p)
	}
	many := want[wire.RenewManyResponse](a, 200, "POST", "/v1/leases/renew", fmt.Sprintf(`{"leases":[{"name":"x","lease":%q}]}`, first.Lease))
	if p := many.Leases[0].Error; p == nil || p.Cause != "broken" || p.Reason != "it hangs" {
		t.Errorf("the holder is told %+v", p)
	}
	stream := listen(t, a, "/v1/events")
	stream.next(t, "watching")
	a.take("x", `{"owner":"bob"}`)
	stream.next(t, "acquired")
	want[wire.Break](a, 200, "DELETE", lockPath("x")+"?reason=again", "")
	stream.next(t, "broken")
	if l := a.losses(); len(l) != 2 || l[1].Owner != "bob" {
		t.Errorf("the watch and the break report it: %+v", l)
	}
	a.take("y", `{"ttl":"1s","owner":"eve"}`)
	stream.next(t, "acquired")
	stream.next(t, "expired")
	leasetest.Eventually(t, "the loss is known", func() bool {
		l := a.losses()
		return len(l) == 3 && l[2].Kind == "expired" && l[2].Owner == "eve"
	})
}

// A lease ID may be used again: the reason of the break belongs to the grant that was broken.
func TestReasonIsOfTheLastGrant(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	const body = `{"lease":"always-the-same-one"}`
	for range 2 {
		a.take("x", body)
		want[wire.Break](a, 200, "DELETE", lockPath("x")+"?reason=it+hangs", "")
	}
	a.take("x", body)
	a.release("x", "always-the-same-one", 204)
	if p := want[wire.Problem](a, 410, "PUT", lockPath("x")+"/leases/always-the-same-one", `{}`); p.Cause != "" || p.Reason != "" {
		t.Errorf("a lease that was released is said to be lost: %+v", p)
	}
}

// The server remembers so many, and forgets the oldest.
func TestLossesAreBounded(t *testing.T) {
	t.Parallel()
	const most = 200
	a := start(t, server.Config{})
	for i := range most + 5 {
		a.take("x", fmt.Sprintf(`{"owner":"o%d"}`, i))
		want[wire.Break](a, 200, "DELETE", lockPath("x"), "")
	}
	if l := a.losses(); len(l) != most || l[0].Owner != "o5" || l[most-1].Owner != fmt.Sprintf("o%d", most+4) {
		t.Errorf("%d, from %+v", len(l), l[0])
	}
}

// The reason of a break is remembered as long as the break, also if an earlier one of the same lease ID is forgotten.
func TestReasonOutlivesAnEarlierBreak(t *testing.T) {
	t.Parallel()
	const most, lease = 200, "always-the-same-one"
	a := start(t, server.Config{})
	again := func(reason string) {
		a.take("x", fmt.Sprintf(`{"lease":%q}`, lease))
		want[wire.Break](a, 200, "DELETE", lockPath("x")+"?reason="+reason, "")
	}
	again("first")
	for range most - 2 {
		a.take("y", `{}`)
		want[wire.Break](a, 200, "DELETE", lockPath("y"), "")
	}
	again("second")
	a.take("y", `{}`) // its break is one too many: that of the first is forgotten
	want[wire.Break](a, 200, "DELETE", lockPath("y"), "")
	if p := want[wire.Problem](a, 410, "PUT", lockPath("x")+"/leases/"+lease, `{}`); p.Reason != "second" {
		t.Errorf("the holder is told %+v", p)
	}
}

// Nobody sees more of a loss than of its lock.
func TestLossesOfOthers(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Identify: caller, Authorize: func(who string, act server.Action) error {
		if who == "bob" && act.Name == "secret" {
			return errors.New("not yours")
		}
		return operatorsBreak(who, act)
	}})
	op, bob := []string{"Authorization", "op"}, []string{"Authorization", "bob"}
	for _, name := range []string{"secret", "open"} {
		want[wire.Grant](a, 200, "POST", lockPath(name), `{"owner":"alice"}`, "Authorization", "alice")
		want[wire.Break](a, 200, "DELETE", lockPath(name)+"?reason=why", "", op...)
	}
	if l := a.losses(op...); len(l) != 2 || l[0].Lease == "" {
		t.Errorf("an operator is told %+v", l)
	}
	if l := a.losses(bob...); len(l) != 1 || l[0].Name != "open" || l[0].Lease != "" {
		t.Errorf("another client is told %+v", l)
	}
}
