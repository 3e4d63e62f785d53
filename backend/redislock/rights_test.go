package redislock_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// leastRights returns the user that the page gives to paste, and the words of its ACL.
func leastRights(t *testing.T) (string, []string) {
	t.Helper()
	blocks := leasetest.Rights(t, "redis.md")
	if len(blocks) != 1 {
		t.Fatalf("%d blocks", len(blocks))
	}
	line := strings.Fields(blocks[0])
	return line[2], line[3:]
}

// The ACL that the page gives to paste has what the program and the transport send and nothing else.
// Without one of its words doctor and the first request that needs it name it.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	user, words := leastRights(t)
	commands, err := redislock.Rights()
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
	s, cfg := quick(t, append([]string{"--user", user}, words...)...)
	url := "redis://" + user + ":choose-one@" + s.Addr()
	as := func() (*redislock.Backend, error) {
		soon := cfg
		soon.RequestTimeout = 6 * time.Second // a user that may not subscribe gets its answer after it
		b, err := redislock.Open(t.Context(), url, soon)
		if err == nil {
			t.Cleanup(func() { _ = b.Close() })
		}
		return b, err
	}
	holder := open(t, s, cfg) // whom the users without a right must not disturb
	held := acquire(t, holder, backend.AcquireRequest{Name: "held", Session: session(t, holder, time.Hour)})
	b, err := as()
	if err != nil {
		t.Fatal(err)
	}
	leasetest.Suffices(t, b)
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
		s.Do("ACL", "SETUSER", user, without)
		b, err := as()
		switch {
		case err == nil:
			leasetest.Refuses(t, b, right)
		case !errors.Is(err, backend.ErrRefused) || !strings.Contains(err.Error(), right) || !strings.Contains(err.Error(), "Least rights"):
			t.Errorf("without %s: %v", word, err)
		}
		s.Do("ACL", "SETUSER", user, word)
	}
	if info, err := holder.Inspect(t.Context(), "held"); err != nil || len(info.Holders) != 1 || info.Holders[0].Lease != held.Lease {
		t.Errorf("the lock of another user: %+v, %v", info, err)
	}
}
