package redislock_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// The ACL that the page gives to paste is enough for the whole suite, and has what the program and the
// transport send and nothing else. Without one of its words doctor and the first request that needs it
// name it.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	blocks := leasetest.Rights(t, "redis.md")
	if len(blocks) != 1 {
		t.Fatalf("%d blocks", len(blocks))
	}
	line := strings.Fields(blocks[0])
	user, words := line[2], line[3:]
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
	s, disk := testserver.WithSlowDisk(t, testserver.Redis(t, append([]string{"--user", user}, words...)...))
	cfg := redislock.Config{Quarantine: time.Second, RequestTimeout: answered}
	settled(t, open(t, s, cfg))
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
	backendtest.Run(t, backendtest.Harness{
		Holders: leasetest.Holders(1000),
		Open: func(t backendtest.T) backend.Backend {
			b, err := redislock.Open(t.Context(), url, cfg)
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		Restart:  func(backendtest.T) { s.Restart() },
		SlowDisk: func(backendtest.T) func() { disk.Slow(testserver.SlowSync); return disk.Fast },
	})
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
