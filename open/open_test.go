package open_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/open"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// Only the URL changes between backends.
func TestURL(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"memory://", "sqlite://" + filepath.Join(t.TempDir(), "locks.db"),
	} {
		b, err := open.URL(t.Context(), url, open.Options{})
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		locks, err := holdfast.New(b, holdfast.Config{})
		if err != nil {
			t.Fatal(err)
		}
		err = locks.Do(t.Context(), "n", func(ctx context.Context, _ *holdfast.Lock) error { return ctx.Err() })
		if err := errors.Join(err, locks.Close(t.Context()), b.Close()); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// Every scheme is shown under URL on a page of docs/backends.
func TestSchemesHaveAPage(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../docs/backends/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		_, url, _ := strings.Cut(string(text), "\n## URL\n")
		url, _, _ = strings.Cut(url, "\n## ")
		shown.WriteString(url + "\n")
	}
	for _, s := range open.Schemes() {
		if !regexp.MustCompile(`(?m)(?:^| {2,})` + regexp.QuoteMeta(s) + `:`).MatchString(shown.String()) {
			t.Errorf("no page of docs/backends shows %s:// under URL", s)
		}
	}
}

// An invalid URL is an *InvalidError that names what is allowed, and never shows a possible
// password.
func TestBadURL(t *testing.T) {
	t.Parallel()
	const secret = "canary-5e1d"
	for _, url := range []string{
		"", secret, "nope://" + secret + "@h", "carrier-pigeon-of-" + secret + "://h", "memory://" + secret, "redis://h?" + secret + "=1",
		"sqlite:///x?" + secret + "=1", "etcd://h?" + secret + "=1", "holdfast://h?" + secret + "=1", "postgres://h?" + secret + "=1",
		"postgres+advisory://u:" + secret + "@h:x/d", "postgres+advisory://h/d?" + secret + "=1", "postgres+advisory://h/d?max_conns=4&x=" + secret,
		"mysql+getlock://u:" + secret + "@h:x/d", "mysql+getlock://h/d?" + secret + "=1",
		"mysql://u:" + secret + "@h:x/d", "mysql://h/d?" + secret + "=1",
		"postgres://u:" + secret + "@h:x/d", "postgres://u:" + secret + "#@h/d", "postgres://u:" + secret + "%zz@h/d",
	} {
		b, err := open.URL(t.Context(), url, open.Options{})
		if err == nil {
			_ = b.Close()
		}
		if !errors.Is(err, backend.ErrInvalid) || strings.Contains(err.Error(), "@"+secret) || strings.Contains(err.Error(), ":"+secret) {
			t.Errorf("%q: %v", url, err)
		}
	}
}

// For a URL of an unknown scheme, the error shows nothing of what follows the scheme.
func FuzzUnknownScheme(f *testing.F) {
	f.Add("x", "u:p@h")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, scheme, rest string) {
		const secret = "canary-9c2b"
		_, err := open.URL(t.Context(), "x"+strings.ReplaceAll(scheme, ":", "")+"://"+secret+rest, open.Options{})
		if !errors.Is(err, backend.ErrInvalid) || strings.Contains(err.Error(), secret) {
			t.Errorf("%v", err)
		}
	})
}
