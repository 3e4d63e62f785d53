package redlock_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// leastRights returns the user that the page gives to paste, and the words of its ACL.
func leastRights(t *testing.T) (string, []string) {
	t.Helper()
	line := strings.Fields(leasetest.Rights(t, "redlock.md")[0])
	return line[2], line[3:]
}

// urlOf is the URL of the nodes for the user of leastRights.
func (c cluster) urlOf(user string) string {
	return strings.Replace(c.url("timeout=30s"), "://", "://"+user+":choose-one@", 1)
}

// The ACL that the page gives to paste has what the program and the transport send and nothing else.
// Without one of its words doctor and the first request that needs it name it.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	user, words := leastRights(t)
	commands, err := redlock.Rights()
	if err != nil {
		t.Fatal(err)
	}
	given := []string{}
	for _, word := range words {
		if command, ok := strings.CutPrefix(word, "+"); ok {
			given = append(given, command)
		}
	}
	if slices.Sort(given); !slices.Equal(given, commands) {
		t.Errorf("the page gives %q, and used are %q", given, commands)
	}
	c := start(t, append([]string{"--user", user}, words...)...)
	url := c.urlOf(user)
	as := func() (*redlock.Backend, error) {
		b, err := redlock.Open(t.Context(), url, redlock.Config{})
		if err == nil {
			t.Cleanup(func() { _ = b.Close() })
		}
		return b, err
	}
	b, err := as()
	if err != nil {
		t.Fatal(err)
	}
	leasetest.Suffices(t, b)
	everywhere := func(word string) {
		for _, s := range c {
			s.Do("ACL", "SETUSER", user, word)
		}
	}
	for _, word := range words {
		without, right := "-"+strings.TrimPrefix(word, "+"), word
		switch word[0] {
		case '~':
			without, right = "resetkeys", "~"
		case '&':
			without = "resetchannels"
		case '+':
		default:
			continue
		}
		everywhere(without)
		b, err := as()
		switch {
		case err == nil:
			leasetest.Refuses(t, b, right)
		case !errors.Is(err, backend.ErrRefused) || !strings.Contains(err.Error(), right) || !strings.Contains(err.Error(), "Least rights"):
			t.Errorf("without %s: %v", word, err)
		}
		everywhere(word)
	}
	leasetest.Suffices(t, b) // and no node stopped voting because of a user without a right
}
