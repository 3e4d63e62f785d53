package redlock

import (
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// vote1 requests a vote for one of the readers.
func vote1(lease string, attempt int64) request {
	return request{
		verb: opAcquire, lock: "n", args: []string{"n", lease, itoa(attempt), "0"},
		terms: terms{ttl: "60000", mode: "s", permits: "1", limit: "0", owner: "owner", note: "note"},
	}
}

// Of several that have the lock together each ends by itself: the next lease need not wait
// for the last of them.
func TestOneOfSeveralEnds(t *testing.T) {
	t.Parallel()
	p := three(t)
	lasts := func(ttl time.Duration) backend.AcquireRequest {
		return wanted("n", permit(4), func(r *backend.AcquireRequest) { r.TTL = ttl })
	}
	for _, ttl := range []time.Duration{5 * time.Minute, 5 * time.Minute, 5 * time.Minute, 2 * time.Second} {
		p.take(t, lasts(ttl))
	}
	leasetest.Succeeds(t, func() error {
		_, err := p.Acquire(t.Context(), lasts(time.Minute))
		return err
	})
}

// A token is not recorded where data may have been lost: the greater ones that the node knew
// of may be what is missing. Nor does the node vote.
func TestTokenIsNotNotedInQuarantine(t *testing.T) {
	t.Parallel()
	p := three(t)
	lease := string(backend.NewLeaseID())
	token := decode(p.told(t, 0, vote1(lease, 1))[1:])
	higher := itoa(token.Number() + 1)
	p.mode = "q" // like a client that keeps the quarantine, which has just begun here
	if r := p.told(t, 0, one("write", "n", lease, higher)); r[0].S != "NO" {
		t.Errorf("a token was noted: %v", r)
	}
	if r := p.told(t, 0, vote1(string(backend.NewLeaseID()), 1)); r[0].S != "Q" {
		t.Errorf("a vote was given: %v", r)
	}
	p.mode = "-"
	if r := p.told(t, 0, one("write", "n", lease, higher)); r[0].S != "OK" {
		t.Errorf("without a quarantine: %v", r)
	}
}

// A lease is held for as long as a quorum of its votes lasts, and not for as long as the last
// of them: a retry for it returns that much time and no more.
func TestLeftIsThatOfTheQuorum(t *testing.T) {
	t.Parallel()
	p, req := three(t), wanted("n")
	p.take(t, req)
	const others = 0b110
	p.cutOff(t, others)
	if p.renew(t, req, 5*time.Minute) == nil {
		t.Fatal("one of three renewed it")
	}
	p.cutOff(t, 0)
	g, err := p.Acquire(t.Context(), req)
	if err != nil || g.Left > req.TTL {
		t.Errorf("it has %s left, %v", g.Left, err)
	}
}

// A permit is renewed by as many nodes as it takes to get one: with fewer there would be room
// for one more than there are.
func TestPermitIsRenewedByItsQuorum(t *testing.T) {
	t.Parallel()
	p, req := three(t), wanted("n", permit(2))
	p.take(t, req)
	for cut, want := range map[int]bool{0: true, 0b100: false} {
		p.cutOff(t, cut)
		if err := p.renew(t, req, time.Minute); (err == nil) != want {
			t.Errorf("nodes %03b away: %v", cut, err)
		}
	}
}
