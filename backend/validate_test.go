package backend_test

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-io/holdfast/backend"
)

// all is a backend that can do everything.
func all() backend.Capabilities {
	return backend.Capabilities{
		Name: "test", Sessions: true, Timed: true, Shared: true, Permits: true, FIFO: true, Watch: true,
		MinTTL: time.Second, MaxTTL: time.Hour, ExpiryLag: time.Second, MaxRenew: 2,
	}
}

const (
	lease   = backend.LeaseID("0123456789abcdef")
	session = backend.SessionID("fedcba9876543210")
)

// check compares err with what is wanted: "" is none, "unsupported" is
// ErrUnsupported, and anything else is the field of an InvalidError.
func check(t *testing.T, err error, want string) {
	t.Helper()
	var bad *backend.InvalidError
	switch want {
	case "":
		if err != nil {
			t.Errorf("got %v, want none", err)
		}
	case "unsupported":
		if !errors.Is(err, backend.ErrUnsupported) || errors.Is(err, backend.ErrInvalid) {
			t.Errorf("got %v, want ErrUnsupported", err)
		}
	default:
		if !errors.As(err, &bad) || !errors.Is(err, backend.ErrInvalid) || bad.Field != want {
			t.Errorf("got %v, want an InvalidError that names %q", err, want)
		}
	}
}

func TestValidateName(t *testing.T) {
	t.Parallel()
	good := []string{
		"a", " ", "a b", "order:123", "a/b/c", "...", ".a", "a.", "a..b", "é", "日本", "🔒", "{a}", "%", "\\", "\u00a0", "\u200b",
		strings.Repeat("x", backend.MaxNameLen), strings.Repeat("é", backend.MaxNameLen/2),
	}
	bad := []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "a/.", "./a", "a/./b", "a/../b", "../a", "a\x00", "a\n", "a\t", "\x7f", "a\u0085", "\xff", "a\xc3",
		"a\xed\xa0\x80", strings.Repeat("x", backend.MaxNameLen+1), strings.Repeat("é", backend.MaxNameLen/2) + "x",
	}
	for _, s := range good {
		check(t, backend.ValidateName(s), "")
	}
	for _, s := range bad {
		check(t, backend.ValidateName(s), "name")
	}
}

func TestValidatePrefix(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "a/", "/", "a//", ".", strings.Repeat("x", backend.MaxNameLen)} {
		check(t, backend.ValidatePrefix(s), "")
	}
	for _, s := range []string{"a\x00", "\xff", strings.Repeat("x", backend.MaxNameLen+1)} {
		check(t, backend.ValidatePrefix(s), "prefix")
	}
}

// A bound is written as a person would.
func TestValidateTTL(t *testing.T) {
	t.Parallel()
	c := backend.Capabilities{MinTTL: 10 * time.Minute, MaxTTL: 365 * 24 * time.Hour}
	for ttl, want := range map[time.Duration]string{
		10 * time.Second:                      "10s",
		90 * time.Second:                      "1m30s",
		9000 * time.Hour:                      "9000h",
		9000*time.Hour + 10*time.Minute:       "9000h10m",
		9000*time.Hour + 500*time.Millisecond: "9000h0m0.5s",
	} {
		var bad *backend.InvalidError
		if err := c.ValidateTTL(ttl); !errors.As(err, &bad) || bad.Value != want || bad.Bound != "10m to 8760h" {
			t.Errorf("%s: %v", ttl, err)
		}
	}
}

func TestValidateIDs(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"0123456789abcdef", "ABCXYZabcxyz_-09", strings.Repeat("a", 64)} {
		check(t, backend.ValidateLeaseID(backend.LeaseID(s)), "")
		check(t, backend.ValidateSessionID(backend.SessionID(s)), "")
	}
	for _, s := range []string{"", "0123456789abcde", strings.Repeat("a", 65), "0123456789abcde ", "0123456789abcde/", "0123456789abcdeé", "0123456789abcde\x00"} {
		check(t, backend.ValidateLeaseID(backend.LeaseID(s)), "lease")
		check(t, backend.ValidateSessionID(backend.SessionID(s)), "session")
	}
	for b := range 256 {
		id := "0123456789abcde" + string([]byte{byte(b)})
		field := "lease"
		if strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-", byte(b)) >= 0 {
			field = ""
		}
		check(t, backend.ValidateLeaseID(backend.LeaseID(id)), field)
	}
	seen := make(map[backend.LeaseID]bool)
	for range 1000 {
		id := backend.NewLeaseID()
		check(t, backend.ValidateLeaseID(id), "")
		check(t, backend.ValidateSessionID(backend.NewSessionID()), "")
		if seen[id] {
			t.Fatalf("%s was made twice", id)
		}
		seen[id] = true
	}
}

func TestAcquireRequestValidate(t *testing.T) {
	t.Parallel()
	good := backend.AcquireRequest{Name: "a", Lease: lease, Session: session}
	type change = func(*backend.AcquireRequest)
	shared := func(limit, k int) change {
		return func(r *backend.AcquireRequest) { r.Mode, r.Limit, r.Permits = backend.Shared, limit, k }
	}
	timed := func(ttl time.Duration) change {
		return func(r *backend.AcquireRequest) { r.Timed, r.TTL = true, ttl }
	}
	for _, x := range []struct {
		name   string
		change change
		caps   func(*backend.Capabilities)
		want   string
	}{
		{"good", func(*backend.AcquireRequest) {}, nil, ""},
		{"name", func(r *backend.AcquireRequest) { r.Name = "a//b" }, nil, "name"},
		{"lease", func(r *backend.AcquireRequest) { r.Lease = "x" }, nil, "lease"},
		{"owner", func(r *backend.AcquireRequest) { r.Owner = "a\n" }, nil, "owner"},
		{"owner, longest", func(r *backend.AcquireRequest) { r.Owner = strings.Repeat("x", backend.MaxOwnerLen) }, nil, ""},
		{"owner, too long", func(r *backend.AcquireRequest) { r.Owner = strings.Repeat("x", backend.MaxOwnerLen+1) }, nil, "owner"},
		{"note, longest", func(r *backend.AcquireRequest) { r.Note = strings.Repeat("x", backend.MaxNoteLen) }, nil, ""},
		{"note, too long", func(r *backend.AcquireRequest) { r.Note = strings.Repeat("x", backend.MaxNoteLen+1) }, nil, "note"},
		{"mode", func(r *backend.AcquireRequest) { r.Mode = 7 }, nil, "mode"},
		{"exclusive with a limit", func(r *backend.AcquireRequest) { r.Limit = 1 }, nil, "limit"},
		{"exclusive with one permit", func(r *backend.AcquireRequest) { r.Permits = 1 }, nil, ""},
		{"exclusive with two permits", func(r *backend.AcquireRequest) { r.Permits = 2 }, nil, "permits"},
		{"reader", shared(0, 0), nil, ""},
		{"reader with two permits", shared(0, 2), nil, "permits"},
		{"reader with less than no permits", shared(0, -1), nil, "permits"},
		{"readers are not supported", shared(0, 1), func(c *backend.Capabilities) { c.Shared = false }, "unsupported"},
		{"all permits", shared(3, 3), nil, ""},
		{"permits by default", shared(3, 0), nil, ""},
		{"too many permits", shared(3, 4), nil, "permits"},
		{"less than no permits", shared(3, -1), nil, "permits"},
		{"less than no limit", shared(-1, 1), nil, "limit"},
		{"greatest limit", shared(backend.MaxLimit, 1), nil, ""},
		{"limit too great", shared(backend.MaxLimit+1, 1), nil, "limit"},
		{"permits are not supported", shared(3, 1), func(c *backend.Capabilities) { c.Permits = false }, "unsupported"},
		{"permits where there are no readers", shared(3, 1), func(c *backend.Capabilities) { c.Shared = false }, ""},
		{"no session", func(r *backend.AcquireRequest) { r.Session = "" }, nil, "session"},
		{"bad session", func(r *backend.AcquireRequest) { r.Session = "x" }, nil, "session"},
		{"timed", timed(time.Minute), nil, ""},
		{"timed, shortest", timed(time.Second), nil, ""},
		{"timed, longest", timed(time.Hour), nil, ""},
		{"timed, too short", timed(time.Second - 1), nil, "ttl"},
		{"timed, too long", timed(time.Hour + 1), nil, "ttl"},
		{"timed without session", func(r *backend.AcquireRequest) { timed(time.Minute)(r); r.Session = "" }, nil, ""},
		{"timed without session, in the queue", func(r *backend.AcquireRequest) { timed(time.Minute)(r); r.Session, r.Wait = "", true }, nil, "session"},
		{"TTL of a lease that is not timed is unused", func(r *backend.AcquireRequest) { r.TTL = -1 }, nil, ""},
		{"no sessions: not timed", func(r *backend.AcquireRequest) { r.Session = "" }, func(c *backend.Capabilities) { c.Sessions = false }, "unsupported"},
		{"no sessions: under a session", timed(time.Minute), func(c *backend.Capabilities) { c.Sessions = false }, "unsupported"},
		{"no sessions: timed, in the queue", func(r *backend.AcquireRequest) { timed(time.Minute)(r); r.Session, r.Wait = "", true }, func(c *backend.Capabilities) { c.Sessions = false }, ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			r, c := good, all()
			x.change(&r)
			if x.caps != nil {
				x.caps(&c)
			}
			check(t, r.Validate(c), x.want)
		})
	}
}

func TestOtherRequestsValidate(t *testing.T) {
	t.Parallel()
	none := all()
	none.Sessions = false
	renewal := backend.TimedRenewal{Name: "a", Lease: lease, TTL: time.Minute}
	with := func(change func(*backend.TimedRenewal)) backend.RenewRequest {
		r := renewal
		change(&r)
		return backend.RenewRequest{Leases: []backend.TimedRenewal{renewal, r}}
	}
	long := strings.Repeat("x", backend.MaxNoteLen+1)
	for _, x := range []struct {
		name string
		err  error
		want string
	}{
		{"session", backend.SessionRequest{ID: session, TTL: time.Minute}.Validate(all()), ""},
		{"session, ID", backend.SessionRequest{ID: "x", TTL: time.Minute}.Validate(all()), "session"},
		{"session, TTL", backend.SessionRequest{ID: session}.Validate(all()), "ttl"},
		{"session, not supported", backend.SessionRequest{ID: session, TTL: time.Minute}.Validate(none), "unsupported"},
		{"renew nothing", backend.RenewRequest{}.Validate(all()), ""},
		{"renew", backend.RenewRequest{Session: session, Leases: []backend.TimedRenewal{renewal, renewal}}.Validate(all()), ""},
		{"renew too many", backend.RenewRequest{Leases: []backend.TimedRenewal{renewal, renewal, renewal}}.Validate(all()), "leases"},
		{"renew, session", backend.RenewRequest{Session: "x"}.Validate(all()), "session"},
		{"renew, session not supported", backend.RenewRequest{Session: session}.Validate(none), "unsupported"},
		{"renew, name", with(func(r *backend.TimedRenewal) { r.Name = "" }).Validate(all()), "name"},
		{"renew, lease", with(func(r *backend.TimedRenewal) { r.Lease = "" }).Validate(all()), "lease"},
		{"renew, TTL", with(func(r *backend.TimedRenewal) { r.TTL = time.Nanosecond }).Validate(all()), "ttl"},
		{"renew, the lease's own TTL", with(func(r *backend.TimedRenewal) { r.TTL = 0 }).Validate(all()), ""},
		{"release", backend.ReleaseRequest{Name: "a", Lease: lease}.Validate(), ""},
		{"release, name", backend.ReleaseRequest{Name: "a/", Lease: lease}.Validate(), "name"},
		{"release, lease", backend.ReleaseRequest{Name: "a", Lease: "x"}.Validate(), "lease"},
		{"release, session", backend.ReleaseRequest{Name: "a", Lease: lease, Session: "x"}.Validate(), "session"},
		{"list", backend.ListRequest{Prefix: "a/", After: "b", Limit: backend.MaxListLimit}.Validate(), ""},
		{"list, prefix", backend.ListRequest{Prefix: "\n"}.Validate(), "prefix"},
		{"list, after", backend.ListRequest{After: "\n"}.Validate(), "after"},
		{"list, limit below", backend.ListRequest{Limit: -1}.Validate(), "limit"},
		{"list, limit above", backend.ListRequest{Limit: backend.MaxListLimit + 1}.Validate(), "limit"},
		{"break", backend.BreakRequest{Name: "a", Reason: "why", Actor: "me"}.Validate(), ""},
		{"break, name", backend.BreakRequest{}.Validate(), "name"},
		{"break, reason", backend.BreakRequest{Name: "a", Reason: long}.Validate(), "reason"},
		{"break, actor", backend.BreakRequest{Name: "a", Actor: long}.Validate(), "actor"},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			check(t, x.err, x.want)
		})
	}
}

// TestListSize: a list without a limit has the greatest one.
func TestListSize(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int]int{0: backend.MaxListLimit, 1: 1, backend.MaxListLimit: backend.MaxListLimit} {
		if got := (backend.ListRequest{Limit: limit}).Size(); got != want {
			t.Errorf("limit %d: %d, want %d", limit, got, want)
		}
	}
}

// FuzzValidateName compares ValidateName with the rule written in another way, and checks that its
// error can be shown: one short line of valid text.
func FuzzValidateName(f *testing.F) {
	for _, s := range []string{"", "a", "a/b", "a//b", "/", "..", "a/..", "é", "\xff", "a\x00", "{a}", strings.Repeat("x", 512), strings.Repeat("x", 513), "a\u0085"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want := len(s) >= 1 && len(s) <= backend.MaxNameLen && utf8.ValidString(s)
		for _, r := range s {
			want = want && !unicode.IsControl(r)
		}
		framed := "/" + s + "/"
		for _, bad := range []string{"//", "/./", "/../"} {
			want = want && !strings.Contains(framed, bad)
		}
		err := backend.ValidateName(s)
		if (err == nil) != want {
			t.Fatalf("ValidateName(%q) = %v", s, err)
		}
		if err == nil {
			return
		}
		check(t, err, "name")
		text := err.Error()
		if len(text) > 1000 || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
			t.Fatalf("the error of %q cannot be shown: %q", s, text)
		}
	})
}
