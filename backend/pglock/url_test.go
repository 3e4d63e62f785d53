package pglock_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

func TestURL(t *testing.T) {
	t.Parallel()
	cfg, err := pglock.ParseURL("postgres://u:p%40ss@one:5433,two/db?sslmode=disable&schema=locks&max_conns=4&listen=false&application_name=x")
	if err != nil {
		t.Fatal(err)
	}
	c := cfg.Conn
	if cfg.Schema != "locks" || cfg.MaxConns != 4 || !cfg.Deaf {
		t.Errorf("ours: %+v", cfg)
	}
	if c.Host != "one" || c.Port != 5433 || c.User != "u" || c.Password != "p@ss" || c.Database != "db" || len(c.Fallbacks) != 1 || c.Fallbacks[0].Host != "two" ||
		c.RuntimeParams["application_name"] != "x" || c.TLSConfig != nil {
		t.Errorf("theirs: %+v", c)
	}
	for name := range c.RuntimeParams {
		if name != "application_name" {
			t.Errorf("the server is told the setting %q", name)
		}
	}
}

func TestBadURLs(t *testing.T) {
	t.Parallel()
	const secret = "canary-7d31"
	for _, url := range []string{
		"", "postgres", "redis://h", "postgres://h/d?nope=1", "postgres://h/d?statement_timeout=1", "postgres://h/d?schema=", "postgres://h/d?schema=A",
		"postgres://h/d?schema=1a", "postgres://h/d?schema=pg_x", "postgres://h/d?schema=a;b", "postgres://h/d?max_conns=2", "postgres://h/d?max_conns=0",
		"postgres://h/d?max_conns=x", "postgres://h/d?listen=maybe", "postgres://h/d?listen=true&listen=true", "postgres://h/d?sslmode=" + secret,
		"postgres://u:" + secret + "@h:port/d", "postgres://u:" + secret + "@h/d#x", "postgres://u:" + secret + "%zz@h/d", "postgres://h/d?%zz=1",
		"postgres://u:" + secret + "@h/d?password=" + secret,
	} {
		b, err := pglock.Open(t.Context(), url, pglock.Config{})
		if err == nil {
			_ = b.Close()
		}
		if !errors.Is(err, backend.ErrInvalid) || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", url, err)
		}
	}
	if _, err := pglock.New(pglock.Config{}); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("New without Conn: %v", err)
	}
}

// The error for an unreachable server does not contain the password.
func TestNoSecretInErrors(t *testing.T) {
	t.Parallel()
	const secret = "canary-7d31"
	b := open(t, "postgres://u:"+secret+"@127.0.0.1:1/d?connect_timeout=1")
	_, err := b.Inspect(leasetest.Within(t), "n")
	if !errors.Is(err, backend.ErrUnavailable) || strings.Contains(err.Error(), secret) {
		t.Errorf("Inspect: %v", err)
	}
}

// FuzzEvents checks that no payload breaks the decoder.
func FuzzEvents(f *testing.F) {
	for _, s := range []string{"", "{}", "\n\n", `{"n":1,"kind":"acquired","name":"n"}`} {
		f.Add(s)
	}
	f.Fuzz(func(_ *testing.T, payload string) { pglock.DecodeEvent(payload) })
}
