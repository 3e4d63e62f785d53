package seqlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/seqlock"
	"github.com/holdfast-io/holdfast/internal/sessions"
)

var errDown = errors.New("down")

// store is a lock in memory. Its entries are tokens, of which most fit into a transaction.
type store struct {
	held     []fence.Token
	joins    []fence.Token // what is held at the second read
	stamp    fence.Token
	most     int
	attempts []seqlock.Outcome // of the attempts in order; when there are no more: Done
}

func (s *store) Holders(context.Context) ([]seqlock.Victim[fence.Token], error) {
	var all []seqlock.Victim[fence.Token]
	for _, token := range s.held {
		all = append(all, seqlock.Victim[fence.Token]{Entry: token, Holder: backend.Holder{Token: token}})
	}
	s.held = append(s.held, s.joins...)
	return all, nil
}

func (s *store) Stamp(context.Context) (fence.Token, error) { return s.stamp, nil }

func (s *store) Evict(_ context.Context, v []seqlock.Victim[fence.Token]) (int, seqlock.Outcome, error) {
	n, outcome := min(len(v), s.most), seqlock.Done
	if len(s.attempts) > 0 {
		outcome, s.attempts = s.attempts[0], s.attempts[1:]
	}
	switch outcome {
	case seqlock.Done:
		s.held = s.held[n:]
	case seqlock.Moved: // the first has left, and another lease was granted
		s.held = append(s.held[1:], v[len(v)-1].Holder.Token+1)
	case seqlock.Nothing, seqlock.Unknown:
		return n, outcome, errDown
	}
	return n, outcome, nil
}

func TestBreak(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		store  store
		broken []fence.Token
		token  fence.Token
		begun  bool
		fails  bool
	}{
		"one":                          {store: store{held: []fence.Token{5}, most: 1}, broken: []fence.Token{5}, token: 6, begun: true},
		"in several transactions":      {store: store{held: []fence.Token{5, 7, 9}, most: 2}, broken: []fence.Token{5, 7, 9}, token: 10, begun: true},
		"nobody":                       {store: store{stamp: 20, most: 1}, token: 20},
		"one that came before a write": {store: store{joins: []fence.Token{15}, stamp: 20, most: 1}, broken: []fence.Token{15}, token: 16, begun: true},
		"one that came after a write":  {store: store{joins: []fence.Token{25}, stamp: 20, most: 1}, token: 20},
		"one has left": {
			store:  store{held: []fence.Token{5, 7}, most: 2, attempts: []seqlock.Outcome{seqlock.Moved}},
			broken: []fence.Token{7}, token: 8, begun: true,
		},
		"refused": {store: store{held: []fence.Token{5}, most: 1, attempts: []seqlock.Outcome{seqlock.Nothing}}, fails: true},
		"no answer": {
			store: store{held: []fence.Token{5}, most: 1, attempts: []seqlock.Outcome{seqlock.Unknown}}, begun: true, fails: true,
		},
		"refused halfway": {
			store: store{held: []fence.Token{5, 7}, most: 1, attempts: []seqlock.Outcome{seqlock.Done, seqlock.Nothing}},
			begun: true, fails: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changes := false
			res, err := seqlock.Break(t.Context(), "store", &test.store, &backend.BreakRequest{}, func(_ context.Context, _ string, err error, c bool) error {
				changes = c
				return err
			})
			away, ok := errors.AsType[*backend.UnavailableError](err)
			if partly := test.fails && test.begun; (err != nil) != test.fails || changes != partly || ok != partly || ok && !away.MayHold {
				t.Fatalf("changes %t, %v", changes, err)
			}
			if err != nil {
				return
			}
			var broken []fence.Token
			for _, h := range res.Broken {
				broken = append(broken, h.Token)
			}
			if !slices.Equal(broken, test.broken) || res.Token != test.token {
				t.Errorf("broken %v, token %d; want %v, %d", broken, res.Token, test.broken, test.token)
			}
		})
	}
}

// entry is an entry of a queue: its lease is its name.
type entry struct {
	name  string
	claim backend.Claim
}

func (e entry) LeaseID() backend.LeaseID { return backend.LeaseID(e.name) }
func (e entry) Claim() backend.Claim     { return e.claim }

// TestDescribe: the limit is that of the entries which are described, and those that are gone have none.
func TestDescribe(t *testing.T) {
	t.Parallel()
	alone, one := backend.Claim{Permits: 1}, backend.Claim{Mode: backend.Shared, Limit: 3, Permits: 1}
	for name, test := range map[string]struct {
		all     []entry
		gone    string
		limit   int
		holders int
		waiters int
		token   fence.Token
	}{
		"free":                             {},
		"exclusive":                        {all: []entry{{"a", alone}, {"b", one}}, limit: 1, holders: 1, waiters: 1, token: 1},
		"permits":                          {all: []entry{{"a", one}, {"b", one}, {"c", alone}}, limit: 3, holders: 2, waiters: 1, token: 2},
		"the exclusive one is gone":        {all: []entry{{"a", alone}, {"b", one}}, gone: "a", limit: 3, waiters: 1},
		"the one that had a limit is gone": {all: []entry{{"a", one}}, gone: "a"},
		"the waiter with a limit is gone":  {all: []entry{{"a", alone}, {"b", one}}, gone: "b", limit: 1, holders: 1, token: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			info := seqlock.QueueOf(test.all).Describe("n", func(i int) (backend.Holder, bool) {
				return backend.Holder{Token: fence.Token(i + 1)}, test.all[i].name != test.gone
			})
			if info.Name != "n" || info.Limit != test.limit || len(info.Holders) != test.holders || len(info.Waiters) != test.waiters || info.Token != test.token {
				t.Errorf("%+v", info)
			}
		})
	}
}

// peer is a session that is nothing in the store.
type peer struct{ *sessions.Session }

func (p peer) Open(context.Context) error  { return p.Extend() }
func (p peer) Run()                        { <-p.Life.Done() }
func (p peer) Renew(context.Context) error { return p.Extend() }
func (p peer) End(context.Context) error   { return nil }
func (p peer) Bury() bool                  { return true }

// TestOutcome: an acquire, even one that was granted, ends with the backend, with its session and with the loss of its lease,
// in this order. The end of its context changes that for a session alone: its own error says more then.
func TestOutcome(t *testing.T) {
	t.Parallel()
	const lease = "leaseleaseleaselease"
	for name, test := range map[string]struct {
		closed, ended, late, lost, left bool // late: the session is past its deadline; left: ctx has ended
		err, want                       error
	}{
		"granted":                                     {},
		"failed":                                      {err: errDown, want: errDown},
		"granted, and closed":                         {closed: true, want: backend.ErrClosed},
		"closed, with all that closing ends":          {closed: true, ended: true, lost: true, err: errDown, want: backend.ErrClosed},
		"granted, and the session has ended":          {ended: true, want: backend.ErrSessionLost},
		"granted, and the session is over on the way": {late: true, want: backend.ErrSessionLost},
		"failed, past the deadline":                   {late: true, err: errDown, want: errDown},
		"failed, and the session has ended":           {ended: true, lost: true, err: errDown, want: backend.ErrSessionLost},
		"its caller left, and the session has ended":  {ended: true, left: true, err: errDown, want: errDown},
		"granted, and lost":                           {lost: true, want: backend.ErrLost},
		"failed, and lost":                            {lost: true, err: errDown, want: backend.ErrLost},
		"granted, lost, and its caller left":          {lost: true, left: true, want: backend.ErrLost},
		"failed, lost, and its caller left":           {lost: true, left: true, err: errDown, want: backend.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				all := sessions.New(sessions.Config[peer]{
					Caps: backend.Capabilities{Sessions: true, MaxTTL: time.Hour},
					New:  func(s *sessions.Session) peer { return peer{s} },
					Fail: func(_ context.Context, _ string, err error, _ bool) error { return err },
				})
				defer all.Close()
				id := backend.NewSessionID()
				if err := all.OpenSession(t.Context(), backend.SessionRequest{ID: id, TTL: time.Minute}); err != nil {
					t.Fatal(err)
				}
				s, err := all.Get(id)
				if err != nil {
					t.Fatal(err)
				}
				leases := seqlock.NewLeases[struct{}](s.Session, nil)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				if test.lost {
					leases.Report(backend.Loss{Lease: lease}, nil)
				}
				if test.late {
					time.Sleep(time.Minute)
				}
				if test.ended {
					s.Expire(backend.CauseExpired)
				}
				if test.left {
					leave()
				}
				if test.closed {
					all.Close()
				}
				if err := leases.Outcome(ctx, all.Base(), lease, test.err); !errors.Is(err, test.want) {
					t.Errorf("%v, want %v", err, test.want)
				}
			})
		})
	}
}

// TestMayHold: what was refused to a lease that has an entry, or may have one, leaves the lease in doubt.
func TestMayHold(t *testing.T) {
	t.Parallel()
	leases := seqlock.NewLeases[struct{}](nil, nil)
	for name, test := range map[string]struct {
		lease *seqlock.Lease[struct{}]
		want  bool
	}{
		"no entry":       {new(seqlock.Lease[struct{}]), false},
		"an entry":       {&seqlock.Lease[struct{}]{Entry: "entry"}, true},
		"maybe an entry": {&seqlock.Lease[struct{}]{Unsure: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			away := &backend.UnavailableError{Err: errDown}
			if err := leases.MayHold(test.lease, fmt.Errorf("refused: %w", away)); !errors.Is(err, away) || away.MayHold != test.want {
				t.Errorf("%v, want that it may be held: %t", err, test.want)
			}
			if err := leases.MayHold(test.lease, errDown); !errors.Is(err, errDown) {
				t.Errorf("%v", err)
			}
		})
	}
}

func notice(i, size int) seqlock.Notice {
	return seqlock.Notice{Lease: backend.LeaseID(strconv.Itoa(i)), Reason: strings.Repeat("r", size)}
}

// TestNoticesAreBounded: the newest notices are kept, and the first says that there were others.
func TestNoticesAreBounded(t *testing.T) {
	t.Parallel()
	var data []byte
	var err error
	for i := range 3 * seqlock.MaxNotices {
		if data, err = seqlock.AddNotices(data, []seqlock.Notice{notice(i, i%500)}, 1); err != nil {
			t.Fatal(err)
		}
		all := seqlock.Notices(data)
		if len(data) > seqlock.MaxNoticeBytes || len(all) > seqlock.MaxNotices || all[len(all)-1].Lease != notice(i, 0).Lease {
			t.Fatalf("%d bytes, %d notices, the last %v", len(data), len(all), all[len(all)-1])
		}
		if all[0].Cut != (all[0].Lease != "0") {
			t.Fatalf("the first of %d notices: %+v", len(all), all[0])
		}
	}
	fresh := []seqlock.Notice{notice(1, seqlock.MaxNoticeBytes), notice(2, seqlock.MaxNoticeBytes)}
	if data, err = seqlock.AddNotices(data, fresh, 2); err != nil || len(seqlock.Notices(data)) != 2 {
		t.Errorf("%d notices, %v; want 2", len(seqlock.Notices(data)), err)
	}
	if data, err = seqlock.AddNotices([]byte("not ours"), fresh[:1], 1); err != nil || len(seqlock.Notices(data)) != 1 {
		t.Errorf("%d notices, %v; want 1", len(seqlock.Notices(data)), err)
	}
}

// TestInbox: a session that has read the notice before those that it sees has missed none.
func TestInbox(t *testing.T) {
	t.Parallel()
	var x seqlock.Inbox
	cut := func(i int) []seqlock.Notice {
		n := notice(i, 0)
		n.Cut = true
		return []seqlock.Notice{n, notice(i+1, 0)}
	}
	// reads reports whether the notices made the session check, with that result.
	reads := func(notices []seqlock.Notice, result error) bool {
		checked := false
		err := x.Read(notices, func() error {
			checked = true
			return result
		})
		if checked && !errors.Is(err, result) || !checked && err != nil {
			t.Errorf("%v, want %v", err, result)
		}
		return checked
	}
	if reads(nil, nil) || reads([]seqlock.Notice{notice(1, 0)}, nil) || reads(cut(1), nil) || reads(cut(2), nil) {
		t.Error("notices were missed; want none")
	}
	if !reads(cut(9), errDown) || !reads(cut(9), nil) {
		t.Error("no notice was missed; want some, until they are found")
	}
	if reads(cut(9), nil) || reads(cut(10), nil) {
		t.Error("notices are missed that were found")
	}
	if !reads(cut(20), errDown) {
		t.Error("no notice was missed; want some")
	}
	if !reads(cut(21), nil) {
		t.Error("a check that failed is forgotten")
	}
}
