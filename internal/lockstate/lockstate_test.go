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

// store writes down what the rules report, and issues tokens from 1 on. All leases live under the
// session "s", until one joins another.
type store struct {
	token     fence.Token
	log       []string
	sessions  map[backend.LeaseID]backend.SessionID
	abandoned map[lockstate.Key]bool
}

func newStore() *store {
	return &store{sessions: make(map[backend.LeaseID]backend.SessionID), abandoned: make(map[lockstate.Key]bool)}
}

func (s *store) note(format string, args ...any) { s.log = append(s.log, fmt.Sprintf(format, args...)) }

func (s *store) Now() time.Time          { return time.Unix(1, 0) }
func (s *store) Token(*lock) fence.Token { s.token++; return s.token }
func (s *store) Queued(l *lease)         { s.note("%s waits", l.ID) }
func (s *store) Granted(l *lease) {
	s.note("%s has %d, waited %t", l.ID, l.Token, l.Waited)
}

func (s *store) Ended(l *lease, was lockstate.State, event backend.EventKind, err error, reason string) {
	s.note("%s ended (%d) with %s, %v %s", l.ID, was, event, err, reason)
}
func (s *store) Extend(l *lease) { s.note("%s ends after %s", l.ID, l.TTL) }

func (s *store) Lost(l *lease, cause backend.Cause, reason string) {
	s.note("%s is lost (%s) %s", l.ID, cause, reason)
}
func (s *store) Abandon(k lockstate.Key)        { s.abandoned[k] = true }
func (s *store) Abandoned(k lockstate.Key) bool { return s.abandoned[k] }

func (s *store) Join(l *lease, id backend.SessionID) bool {
	s.sessions[l.ID] = id
	return id != "dead"
}
func (s *store) Session(l *lease) backend.SessionID { return s.sessions[l.ID] }
func (s *store) Left(*lease) time.Duration          { return time.Minute }

// An input is what happens to a lock.
type input func(s *store, l *lock)

func ask(req backend.AcquireRequest) input {
	return func(s *store, l *lock) {
		req.Permits = max(1, req.Permits)
		x, err := lockstate.Acquire(s, l, &req)
		if err == nil && x.State == lockstate.Held {
			_, err = lockstate.Answer(s, x, req.Session, time.Unix(0, 0))
		}
		if err != nil {
			s.note("%s: %v", req.Lease, err)
		}
	}
}

func take(id string, wait bool, c backend.Claim) input {
	return ask(backend.AcquireRequest{
		Lease: backend.LeaseID(id), Session: "s", Wait: wait, Mode: c.Mode, Permits: c.Permits, Limit: c.Limit,
	})
}

func under(session, id string, wait bool) input {
	return ask(backend.AcquireRequest{Lease: backend.LeaseID(id), Session: backend.SessionID(session), Wait: wait})
}

func timed(id string) input {
	return ask(backend.AcquireRequest{Lease: backend.LeaseID(id), Timed: true, TTL: time.Second})
}

func renew(id string) input {
	return func(s *store, l *lock) {
		if r := lockstate.Renew(s, l.Find(backend.LeaseID(id)), time.Hour); r.Err != nil {
			s.note("%s: %v", id, r.Err)
		}
	}
}

func release(id string, abandon bool) input {
	return func(s *store, l *lock) {
		if err := lockstate.Release(s, l, &backend.ReleaseRequest{Lease: backend.LeaseID(id), Abandon: abandon}); err != nil {
			s.note("%s: %v", id, err)
		}
	}
}

func breaks(s *store, l *lock) {
	res := lockstate.Break(s, l, &backend.BreakRequest{Name: l.Name, Reason: "why"})
	s.note("%d were broken, token %d", len(res.Broken), res.Token)
}

func try(id string) input  { return take(id, false, backend.Claim{}) }
func wait(id string) input { return take(id, true, backend.Claim{}) }
func read(id string) input { return take(id, true, backend.Claim{Mode: backend.Shared}) }
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
			{try("a"), "a has 1, waited false"},
			{wait("b"), "b waits"},
			{wait("c"), "c waits"},
			{try("d"), `d: lock "n" is held since`},
			{settle, ""},
			{end("a"), "a ended (1) with released, lease is lost why"},
			{settle, "b has 2, waited true"},
			{end("c"), "c ended (0) with left, lease is lost why"},
			{end("b"), "b ended (1) with released, lease is lost why"},
			{settle, ""},
			{try("e"), "e has 3, waited false"},
		},
		"readers share, and none of them passes a writer that waits": {
			{read("r"), "r has 1, waited false"},
			{read("s"), "s has 2, waited false"},
			{wait("w"), "w waits"},
			{read("t"), "t waits"},
			{read("u"), "u waits"},
			{end("r"), "r ended (1) with released, lease is lost why"},
			{settle, ""},
			{end("s"), "s ended (1) with released, lease is lost why"},
			{settle, "w has 3, waited true"},
			{end("w"), "w ended (1) with released, lease is lost why"},
			{settle, "t has 4, waited true; u has 5, waited true"},
		},
		"permits are counted, and the limit is one for all": {
			{permits("a", 2, 3), "a has 1, waited false"},
			{permits("b", 2, 3), "b waits"},
			{permits("c", 1, 3), "c waits"},
			{permits("d", 1, 4), `d: limit 4 of lock "n": must be 3, which is in force`},
			{end("a"), "a ended (1) with released, lease is lost why"},
			{settle, "b has 2, waited true; c has 3, waited true"},
		},
		"a repeated request gets what the first got, under the session of the newest": {
			{try("a"), "a has 1, waited false"},
			{try("a"), ""},
			{under("t", "a", true), "a: lease is lost"},
			{wait("b"), "b waits"},
			{wait("b"), ""},
			{try("b"), `b: lock "n" is held`},
			{under("dead", "b", true), "b: session"},
			{under("t", "b", true), ""},
			{end("a"), "a ended (1) with released, lease is lost why"},
			{settle, "b has 2, waited true"},
			{under("t", "b", false), ""},
			{wait("b"), "b: lease is lost"},
		},
		"nothing is granted under a session that has ended": {
			{under("dead", "a", true), "a: session"}, {try("b"), "b has 1, waited false"},
		},
		"a lease is released once, and never granted when it was abandoned": {
			{try("a"), "a has 1, waited false"},
			{release("a", false), "a ended (1) with released, lease is lost"},
			{release("a", false), "a: lease is lost"},
			{release("b", true), ""},
			{wait("b"), "b: lease is lost"},
			{wait("c"), "c has 2, waited false"},
			{release("c", true), "c ended (1) with released, lease is lost"},
			{wait("c"), "c: lease is lost"},
		},
		"only a timed lease that is held is renewed by itself": {
			{timed("a"), "a ends after 1s; a has 1, waited false"},
			{renew("a"), "a ends after 1h0m0s"},
			{timed("a"), ""},
			{renew("b"), "b: lease is lost"},
			{timed("w"), `w: lock "n" is held`},
			{release("a", false), "a ended (1) with released, lease is lost"},
			{try("c"), "c has 2, waited false"},
			{renew("c"), "c: lease is lost"},
		},
		"a break ends what is held, and the next token is greater": {
			{read("a"), "a has 1, waited false"},
			{read("b"), "b has 2, waited false"},
			{wait("w"), "w waits"},
			{breaks, "a ended (1) with broken, lease is lost why; a is lost (broken) why; b ended (1) with broken, lease is lost why; b is lost (broken) why; 2 were broken, token 3"},
			{settle, "w has 4, waited true"},
		},
		"waiters that were not read are before a new one, and have a limit": {
			{unread(2, 5), ""}, {try("a"), `a: lock "n" is held`}, {wait("a"), "a waits"}, {permits("b", 1, 6), `b: limit 6 of lock "n": must be 5, which is in force`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, l := newStore(), &lock{Name: "n"}
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
	s, l := newStore(), &lock{Name: "n"}
	read("r")(s, l)
	read("s")(s, l)
	wait("w")(s, l)
	info := lockstate.Info(s, l)
	if info.Token != 2 || info.Limit != 0 || len(info.Holders) != 2 || len(info.Waiters) != 1 || info.Waiters[0].Lease != "w" || info.Holders[1].Session != "s" || info.Holders[0].Left != time.Minute {
		t.Errorf("%+v", info)
	}
	w := l.Find("w")
	_, err := lockstate.Acquire(s, l, &backend.AcquireRequest{Lease: "w", Session: "s", Permits: 1})
	if held, ok := errors.AsType[*backend.HeldError](err); !ok || held.Count != 2 || held.Ahead != 0 {
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

// A page has the locks that are not free, and the name to continue with if there are more.
func TestList(t *testing.T) {
	t.Parallel()
	s, locks := newStore(), make(map[string]*lock)
	for _, name := range []string{"a", "b", "c"} {
		locks[name] = &lock{Name: name}
		if name != "b" {
			try(name)(s, locks[name])
		}
	}
	for limit, want := range map[int]string{1: "[a] a", 2: "[a] b", 3: "[a c] ", 0: "[a c] "} {
		var names []string
		page := lockstate.List(s, backend.ListRequest{Limit: limit}, []string{"a", "b", "c"}, func(n string) *lock { return locks[n] })
		for _, info := range page.Locks {
			names = append(names, info.Name)
		}
		if got := fmt.Sprint(names, " ", page.Next); got != want {
			t.Errorf("limit %d: %q, want %q", limit, got, want)
		}
	}
}

// TestPage: free locks take no room, and a page that is full has a next one only if a lock follows that is not free.
func TestPage(t *testing.T) {
	t.Parallel()
	failed := errors.New("no answer")
	for name, x := range map[string]struct {
		size int
		all  string // a lock each: upper case is held, lower case is free, ? has waiters alone, ! has no answer
		want string
		next string
	}{
		"none":                        {2, "", "", ""},
		"all are free":                {2, "abc", "", ""},
		"as many as there is room":    {2, "AbB", "AB", ""},
		"one more":                    {2, "AbBcC", "AB", "B"},
		"free ones behind a full one": {2, "ABcde", "AB", ""},
		"waiters alone":               {1, "a?B", "?", "?"},
		"no answer":                   {2, "A!B", "", "failed"},
		"no answer behind the page":   {1, "AB!", "A", "A"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			page, err := lockstate.Page(x.size, []byte(x.all), func(c byte) (backend.LockInfo, error) {
				info := backend.LockInfo{Name: string(c)}
				switch {
				case c == '!':
					return info, failed
				case c == '?':
					info.Waiters = make([]backend.Waiter, 1)
				case c < 'a':
					info.Holders = make([]backend.Holder, 1)
				}
				return info, nil
			})
			var names strings.Builder
			for _, info := range page.Locks {
				names.WriteString(info.Name)
			}
			got, next := names.String(), page.Next
			if errors.Is(err, failed) {
				next = "failed"
			}
			if got != x.want || next != x.next {
				t.Errorf("%q, next %q; want %q, %q", got, next, x.want, x.next)
			}
		})
	}
}
