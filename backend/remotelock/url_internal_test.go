package remotelock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// The file of a token is added to each URL of Holdfast servers that has no token, also of several servers.
func TestWithTokenFile(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"holdfast://h":                        "holdfast://h?token_file=%2Fa%26b",
		"holdfasts://a:7420,b:7421,[::1]:1/p": "holdfasts://a:7420,b:7421,[::1]:1/p?token_file=%2Fa%26b",
		"holdfasts://a:7420,b?ca=x":           "holdfasts://a:7420,b?ca=x&token_file=%2Fa%26b",
		"holdfast+unix:///s":                  "holdfast+unix:///s?token_file=%2Fa%26b",
		"holdfasts://:secret@a,b:1":           "holdfasts://:secret@a,b:1",
		"holdfasts://a,b?token_file=x":        "holdfasts://a,b?token_file=x",
		"holdfast://a?":                       "holdfast://a?",
		"redis://a":                           "redis://a",
		"":                                    "",
	} {
		if got := WithTokenFile(raw, "/a&b"); got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
		if got := WithTokenFile(raw, ""); got != raw {
			t.Errorf("%s without a file: %s", raw, got)
		}
	}
}

// The file of a token is read again when it has changed. One that is gone, or is empty for a moment, changes nothing.
func TestTokenIsReadAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "token")
		token := &token{file: path}
		if got, err := token.get(); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("no file: %q, %v", got, err)
		}
		for _, c := range []struct{ text, want string }{{"first\n", "first"}, {"second", "second"}, {"", "second"}, {"a\nb", "second"}, {" third ", "third"}} {
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if got, err := token.get(); got != c.want || err != nil {
				t.Errorf("%q: %q, %v", c.text, got, err)
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got, err := token.get(); got != "third" || err != nil {
			t.Errorf("without the file: %q, %v", got, err)
		}
	})
}

// No URL makes parse panic or return a server without a port, and its errors never have the token.
func FuzzURL(f *testing.F) {
	leasetest.FuzzURL(f, func(raw string) error {
		t, err := parse(raw)
		if err != nil {
			return err
		}
		token, err := t.token.get()
		for _, u := range t.bases {
			if u.Host == "" || t.socket == "" && u.Port() == "" || strings.Contains(u.String(), leasetest.Canary) || strings.Contains(raw, leasetest.Canary) && token != leasetest.Canary {
				err = fmt.Errorf("parsed as %s", u)
			}
		}
		return err
	},
		"holdfast://h", "holdfasts://:token@h:7420/path/", "holdfast://[::1]:1", "holdfast://u@h", "holdfast://h:99999", "http://h", "holdfast://h?x=1", "holdfast://%zz", "holdfast+unix:///run/h.sock", "holdfast://h?token_file=x", "holdfasts://:token@a,b:1,[::1]/path")
}
