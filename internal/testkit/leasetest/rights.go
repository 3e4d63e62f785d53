package leasetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/launch"
)

// Rights returns the fenced blocks under the heading "Least rights" of a page in docs/backends, without
// their fences. The test applies them to a real server: what users paste is what is tested.
func Rights(tb testing.TB, page string) []string {
	tb.Helper()
	root, err := launch.Repository()
	if err != nil {
		tb.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "backends", page)) //nolint:gosec // of this repository
	if err != nil {
		tb.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n### Least rights\n")
	if !ok {
		tb.Fatalf("%s has no heading Least rights", page)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var blocks []string
	for i, part := range strings.Split(section, "\n```") {
		if _, block, _ := strings.Cut(part, "\n"); i%2 == 1 {
			blocks = append(blocks, block+"\n")
		}
	}
	return blocks
}

// RedisUser returns the user of Redis that a page gives to paste, and the words of its ACL.
func RedisUser(tb testing.TB, page string) (string, []string) {
	tb.Helper()
	blocks := Rights(tb, page)
	if len(blocks) != 1 {
		tb.Fatalf("%s has %d blocks", page, len(blocks))
	}
	line := strings.Fields(blocks[0])
	return line[2], line[3:]
}

// RedisRights checks the ACL that a page gives to paste: it has the commands and nothing else, they suffice, and without one
// of its words doctor and the first request that needs it name it. The words are taken from users of their own, set on all
// servers, side by side: who may not subscribe is answered late.
func RedisRights(t *testing.T, page string, commands []string, set func(user string, words ...string), as func(user string) (backend.Backend, error)) {
	t.Helper()
	user, words := RedisUser(t, page)
	var given []string
	lacks := make(map[string]string) // what a user lacks, by the words that take it away
	for _, word := range words {
		switch word[0] {
		case '~':
			lacks["resetkeys"] = "~"
		case '&':
			lacks["resetchannels"] = word
		case '+':
			given = append(given, word[1:])
			lacks["-"+word[1:]] = word
		}
	}
	if slices.Sort(given); !slices.Equal(given, commands) {
		t.Errorf("the page gives %q, and used are %q", given, commands)
	}
	suffices := func() {
		b, err := as(user)
		if err != nil {
			t.Fatal(err)
		}
		Suffices(t, b)
	}
	suffices()
	var all sync.WaitGroup
	for without, right := range lacks {
		all.Go(func() {
			t.Run(without, func(t *testing.T) {
				user := strings.ReplaceAll(without, "|", "_") // it is part of a URL
				set(user, slices.Concat(words, []string{without})...)
				b, err := as(user)
				switch {
				case err == nil:
					Refuses(t, b, right)
				case !errors.Is(err, backend.ErrRefused) || !names(backend.Findings(false, err.Error()), right):
					t.Errorf("without %s: %v", right, err)
				}
			})
		})
	}
	all.Wait()
	suffices() // whatever the others were refused
}

// Grant is one right of a GRANT statement.
type Grant struct{ Right, On, To string }

// String returns the right as an error names it.
func (g Grant) String() string { return g.Right + " ON " + g.On }

// Statements splits a block of SQL into its statements, and returns the rights in its GRANTs, one by one.
func Statements(block string) ([]string, []Grant) {
	var statements []string
	var grants []Grant
	for s := range strings.SplitSeq(block, ";\n") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		statements = append(statements, s)
		rest, ok := strings.CutPrefix(strings.Join(strings.Fields(s), " "), "GRANT ")
		if !ok {
			continue
		}
		rights, rest, _ := strings.Cut(rest, " ON ")
		objects, to, _ := strings.Cut(rest, " TO ")
		for object := range strings.SplitSeq(objects, ", ") {
			for right := range strings.SplitSeq(rights, ", ") {
				grants = append(grants, Grant{right, object, to})
			}
		}
	}
	return statements, grants
}

// Refuses checks a backend whose user lacks one right. Examine names it, in a finding or in its error.
// What fails of a short scenario fails because of it, with the remedy, and soon.
func Refuses(t *testing.T, b backend.Backend, right string) {
	t.Helper()
	found, err := b.(backend.Examiner).Examine(Within(t)) //nolint:forcetypeassert // every store that has rights has it
	if err != nil {
		found = append(found, backend.Finding{Text: err.Error()})
	}
	if !names(found, right) || err != nil && !errors.Is(err, backend.ErrRefused) {
		t.Errorf("without %s: Examine: %v, %v; it has to name the right and the remedy", right, found, err)
	}
	for _, err := range Scenario(t, b) {
		if errors.Is(err, backend.ErrSessionLost) || errors.Is(err, backend.ErrLost) {
			continue // of a session that could not be renewed, or not be ended in an orderly way
		}
		if !errors.Is(err, backend.ErrRefused) || !errors.Is(err, backend.ErrUnavailable) || !names(backend.Findings(false, err.Error()), "") {
			t.Errorf("without %s: %v; want ErrRefused with the remedy", right, err)
		}
	}
}

// names reports whether one of the findings has the right and where the remedy is.
func names(found []backend.Finding, right string) bool {
	return slices.ContainsFunc(found, func(f backend.Finding) bool {
		return strings.Contains(f.Text, right) && strings.Contains(f.Text, "Least rights")
	})
}

// Suffices checks a backend whose user has all rights that it needs, and no others.
func Suffices(t *testing.T, b backend.Backend) {
	t.Helper()
	if found, err := steadily(t, b.(backend.Examiner).Examine); err != nil || names(found, "") { //nolint:forcetypeassert // every store that has rights has it
		t.Errorf("Examine: %v, %v", found, err)
	}
	if errs := Scenario(t, b); errs != nil {
		t.Errorf("%v", errs)
	}
}

var errNotReleased = errors.New("the lock was not released")

// Scenario does a little of everything: acquire, wait, release, renew, share, read, list, break and
// watch. It returns the errors of its steps. A step that needs an earlier one is left out where that
// failed.
func Scenario(t *testing.T, b backend.Backend) []error {
	t.Helper()
	var errs []error
	step := func(what string, err error) bool {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
		return err == nil
	}
	do := func(what string, call func(context.Context) error) bool { return step(what, answered(t, call)) }
	caps := b.Capabilities()
	ttl := min(caps.MaxTTL, 30*time.Second) // a waiter that is refused notifications may have to wait for its end
	ids := []backend.SessionID{"", ""}
	for i := range ids {
		if !caps.Sessions {
			break
		}
		ids[i] = backend.NewSessionID()
		open := func(ctx context.Context) error {
			return b.OpenSession(ctx, backend.SessionRequest{ID: ids[i], TTL: ttl})
		}
		if !do("open session", open) {
			return errs
		}
	}
	ask := func(name string, id backend.SessionID) backend.AcquireRequest {
		r := Ask(name, id)
		if !caps.Sessions {
			r.Timed, r.TTL = true, ttl
		}
		return r
	}
	acquire := func(what string, r backend.AcquireRequest) bool {
		return do(what, func(ctx context.Context) error { _, err := b.Acquire(ctx, r); return err })
	}
	release := func(r backend.AcquireRequest) bool {
		times := 0
		return do("release", func(ctx context.Context) error {
			err := b.Release(ctx, backend.ReleaseRequest{Name: r.Name, Lease: r.Lease, Session: r.Session})
			if times++; times > 1 && errors.Is(err, backend.ErrLost) { // the first one worked
				err = nil
			}
			return err
		})
	}
	name := "rights:" + string(backend.NewLeaseID())
	if first := ask(name, ids[0]); acquire("acquire", first) {
		second := ask(name, ids[1])
		waiting, leave := context.WithCancelCause(Within(t))
		got := make(chan error, 1)
		go func() {
			got <- answered(t, func(context.Context) error {
				_, err := b.Acquire(waiting, second)
				if err != nil && waiting.Err() != nil {
					err = context.Cause(waiting)
				}
				return err
			})
		}()
		<-time.After(100 * time.Millisecond) // whether it is queued by then makes no difference to what is checked
		released := release(first)
		if !released {
			leave(errNotReleased)
		}
		if err := <-got; !errors.Is(err, errNotReleased) && step("wait", err) {
			release(second)
		}
		leave(nil)
	}
	if caps.Shared {
		r := ask(name+":shared", ids[0])
		if r.Mode = backend.Shared; acquire("acquire shared", r) {
			release(r)
		}
	}
	if caps.Sessions {
		do("renew", func(ctx context.Context) error {
			_, err := b.Renew(ctx, backend.RenewRequest{Session: ids[0]})
			return err
		})
	}
	if caps.Timed {
		r := ask(name+":timed", ids[0])
		if r.Timed, r.TTL = true, ttl; acquire("acquire timed", r) {
			do("renew timed", func(ctx context.Context) error {
				res, err := b.Renew(ctx, backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: r.Name, Lease: r.Lease, TTL: r.TTL}}})
				if err == nil {
					err = res.Leases[0].Err
				}
				return err
			})
			release(r)
		}
	}
	do("inspect", func(ctx context.Context) error { _, err := b.Inspect(ctx, name); return err })
	do("list", func(ctx context.Context) error {
		_, err := b.List(ctx, backend.ListRequest{Prefix: "rights:", Limit: 10})
		return err
	})
	if r := ask(name+":broken", ids[0]); acquire("acquire for a break", r) {
		do("break", func(ctx context.Context) error {
			_, err := b.Break(ctx, backend.BreakRequest{Name: r.Name, Reason: "a test"})
			return err
		})
	}
	if caps.Watch {
		do("watch", func(ctx context.Context) error { return watched(ctx, b) })
	}
	for _, id := range ids {
		if caps.Sessions {
			do("end session", func(ctx context.Context) error { return b.EndSession(ctx, id) })
		}
	}
	return errs
}

// answered repeats a call that had no answer because the machine stood still, as Take does. That the store
// refuses it is an answer.
func answered(t *testing.T, call func(context.Context) error) error {
	t.Helper()
	var refused error
	_, err := steadily(t, func(ctx context.Context) (struct{}, error) {
		err := call(ctx)
		if errors.Is(err, backend.ErrRefused) {
			refused, err = err, nil
		}
		return struct{}{}, err
	})
	if err == nil {
		err = refused
	}
	return err
}

// watched returns nil once a Watch has begun, or else its error.
func watched(ctx context.Context, b backend.Backend) error {
	began := errors.New("it began")
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err := b.Watch(ctx, backend.WatchRequest{}, func(e backend.Event) {
		if e.Kind == backend.EventWatching {
			stop(began)
		}
	})
	if errors.Is(err, began) {
		return nil
	}
	return err
}
