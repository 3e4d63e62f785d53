package lockstate_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

type (
	lock  = lockstate.Lock[struct{}, struct{}]
	lease = lockstate.Lease[struct{}, struct{}]
)

// store writes down what the rules report, and issues tokens from 1 on.
type store struct {
	token fence.Token
	log   []string
}

func (s *store) note(format string, args ...any) { s.log = append(s.log, fmt.Sprintf(format, args...)) }

func (s *store) Now() time.Time          { return time.Unix(1, 0) }
func (s *store) Token(*lock) fence.Token { s.token++; return s.token }
func (s *store) Queued(l *lease)         { s.note("%s waits", l.ID) }
func (s *store) Granted(l *lease) {
	s.note("%s has %d, waited %t, joined %t", l.ID, l.Token, l.Waited, l.Joined)
}

func (s *store) Ended(l *lease, was lockstate.State, event backend.EventKind, err error, reason string) {
	s.note("%s ended (%d) with %s, %v %s", l.ID, was, event, err, reason)
}
func (s *store) Session(*lease) backend.SessionID { return "s" }
func (s *store) Left(*lease) time.Duration        { return time.Minute }

// An input is what happens to a lock.
type input func(s *store, l *lock)

func take(id string, wait bool, c backend.Claim) input {
	return func(s *store, l *lock) {
		c.Permits = max(1, c.Permits)
		err := lockstate.Take(s, l, &lease{ID: backend.LeaseID(id), Claim: c}, wait)
		if err != nil {
			s.note("%s: %v", id, err)
		}
	}
}

func try(id string) input    { return take(id, false, backend.Claim{}) }
func wait(id string) input   { return take(id, true, backend.Claim{}) }
func read(id string) input   { return take(id, true, backend.Claim{Mode: backend.Shared}) }
func rejoin(id string) input { return take(id, true, backend.Claim{Reentrant: true, Owner: "o"}) }
func permits(id string, n, limit int) input {
	return take(id, true, backend.Claim{Mode: backend.Shared, Permits: n, Limit: limit})
}

func end(id string) input {
	return func(s *store, l *lock) {
		lockstate.End(s, l.Find(backend.LeaseID(id)), backend.EventReleased, backend.ErrLost, "why")
	}
}

func settle(s *store, l *lock) { lockstate.Settle(s, l, nil) }

// unread says that the store has not read some waiters behind those that it has.
func unread(n, limit int) input { return func(_ *store, l *lock) { l.Rest, l.RestLimit = n, limit } }

// TestRules has a script for each rule: what is done, and what the store is told.
func TestRules(t *testing.T) {
	t.Parallel()
	type step struct {
		do   input
		want string
	}
	for name, script := range map[string][]step{
		"a free lock is granted, a held one is handed over in order": {
			{try("a"), "a has 1, waited false, joined false"},
			{wait("b"), "b waits"},
			{wait("c"), "c waits"},
			{try("d"), `d: lock "n" is held since`},
			{settle, ""},
			{end("a"), "a ended (1) with released, lease is lost why"},
			{settle, "b has 2, waited true, joined false"},
			{end("c"), "c ended (0) with left, lease is lost why"},
			{end("b"), "b ended (1) with released, lease is lost why"},
			{settle, ""},
			{try("e"), "e has 3, waited false, joined false"},
		},
		"readers share, and none of them passes a writer that waits": {
			{read("r"), "r has 1, waited false, joined false"},
			{read("s"), "s has 2, waited false, joined false"},
			{wait("w"), "w waits"},
			{read("t"), "t waits"},
			{read("u"), "u waits"},
			{end("r"), "r ended (1) with released, lease is lost why"},
			{settle, ""},
			{end("s"), "s ended (1) with released, lease is lost why"},
			{settle, "w has 3, waited true, joined false"},
			{end("w"), "w ended (1) with released, lease is lost why"},
			{settle, "t has 4, waited true, joined false; u has 5, waited true, joined false"},
		},
		"permits are counted, and the limit is one for all": {
			{permits("a", 2, 3), "a has 1, waited false, joined false"},
			{permits("b", 2, 3), "b waits"},
			{permits("c", 1, 3), "c waits"},
			{permits("d", 1, 4), `d: limit 4 of lock "n": must be 3, which is in force`},
			{end("a"), "a ended (1) with released, lease is lost why"},
			{settle, "b has 2, waited true, joined false; c has 3, waited true, joined false"},
		},
		"who joins by re-entry passes the queue, with the token of the first": {
			{rejoin("a"), "a has 1, waited false, joined false"},
			{wait("w"), "w waits"},
			{rejoin("b"), "b has 1, waited false, joined true"},
			{end("a"), "a ended (1) with released, lease is lost why"},
			{settle, ""},
			{end("b"), "b ended (1) with released, lease is lost why"},
			{settle, "w has 2, waited true, joined false"},
		},
		"waiters that were not read are before a new one, and have a limit": {
			{unread(2, 5), ""}, {try("a"), `a: lock "n" is held`}, {wait("a"), "a waits"}, {permits("b", 1, 6), `b: limit 6 of lock "n": must be 5, which is in force`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, l := new(store), &lock{Name: "n"}
			for i, x := range script {
				s.log = nil
				x.do(s, l)
				if got := strings.Join(s.log, "; "); !strings.HasPrefix(got, x.want) || x.want == "" && got != "" {
					t.Fatalf("step %d: %q, want %q", i+1, got, x.want)
				}
			}
		})
	}
}

// A lease that has ended is not ended again, and a lock describes what it has.
func TestInfo(t *testing.T) {
	t.Parallel()
	s, l := new(store), &lock{Name: "n"}
	read("r")(s, l)
	read("s")(s, l)
	wait("w")(s, l)
	info := lockstate.Info(s, l)
	if info.Token != 2 || info.Limit != 0 || len(info.Holders) != 2 || len(info.Waiters) != 1 || info.Waiters[0].Lease != "w" || info.Holders[1].Session != "s" || info.Holders[0].Left != time.Minute {
		t.Errorf("%+v", info)
	}
	w := l.Find("w")
	if held, ok := errors.AsType[*backend.HeldError](lockstate.HeldError(s, w)); !ok || held.Count != 2 || held.Ahead != 0 {
		t.Errorf("%+v", held)
	}
	if e := lockstate.Event(s, backend.EventWaiting, w, ""); e.Token != 0 || e.Name != "n" || !e.At.Equal(s.Now()) {
		t.Errorf("%+v", e)
	}
	end("w")(s, l)
	s.log = nil
	lockstate.End(s, w, backend.EventReleased, nil, "")
	if len(s.log) > 0 || l.Free() || l.QueueLen() != 0 {
		t.Errorf("%q, %d wait", s.log, l.QueueLen())
	}
	end("r")(s, l)
	end("s")(s, l)
	wait("x")(s, l)
	if info := lockstate.Info(s, l); info.Limit != 1 || info.Token != 3 {
		t.Errorf("%+v", info)
	}
	if e := lockstate.Event(s, backend.EventAcquired, l.Find("x"), ""); e.Token != 3 {
		t.Errorf("%+v", e)
	}
}
