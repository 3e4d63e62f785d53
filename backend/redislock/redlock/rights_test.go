package redlock_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// The ACL that the page gives to paste is enough for the whole suite, and has what the program and the
// transport send and nothing else. Without one of its words doctor and the first request that needs it
// name it.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	line := strings.Fields(leasetest.Rights(t, "redlock.md")[0])
	user, words := line[2], line[3:]
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
	c, disk := start(t, append([]string{"--user", user}, words...)...), testserver.NewSlowDisk(t)
	for _, s := range c {
		testserver.UseDisk(s, disk)
	}
	url := strings.Replace(c.url("timeout=30s"), "://", "://"+user+":choose-one@", 1)
	as := func() (*redlock.Backend, error) {
		b, err := redlock.Open(t.Context(), url, redlock.Config{})
		if err == nil {
			t.Cleanup(func() { _ = b.Close() })
		}
		return b, err
	}
	backendtest.Run(t, backendtest.Harness{
		Holders: leasetest.Holders(200), // each vote of five names all holders
		Open: func(t backendtest.T) backend.Backend {
			b, err := redlock.Open(t.Context(), url, redlock.Config{})
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		Restart: func(backendtest.T) {
			for _, s := range c {
				s.Kill()
			}
			for _, s := range c {
				s.Start()
			}
		},
		SlowDisk: func(backendtest.T) func() { disk.Slow(testserver.SlowSync); return disk.Fast },
	})
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
