package redislock_test

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// briefly is a quarantine that ends soon: a server that was just started may have lost data.
var briefly = redislock.Config{Quarantine: time.Second, RequestTimeout: answered}

// The whole suite, as the user that the page gives to paste.
func TestConformance(t *testing.T) {
	t.Parallel()
	user, words := leasetest.RedisUser(t, "redis.md")
	s, disk := testserver.WithSlowDisk(t, testserver.Redis(t, append([]string{"--user", user}, words...)...))
	settled(t, open(t, s, briefly))
	backendtest.Run(t, backendtest.Harness{
		Open:     opening(as("redis://"+user+":choose-one@"+s.Addr(), briefly)),
		Restart:  func(backendtest.T) { s.Restart() },
		SlowDisk: func(backendtest.T) func() { disk.Slow(testserver.SlowSync); return disk.Fast },
	})
}

// What the way to the program changes, with a server that takes no functions.
func TestConformanceOfTheScript(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.Redis(t, scriptsOnly()...)
	settled(t, open(t, s, briefly))
	backendtest.Run(t, backendtest.Harness{
		Only:       leasetest.Transport(),
		Open:       opening(as("redis://"+s.Addr(), briefly)),
		Restart:    func(backendtest.T) { s.Restart() },
		NoSlowDisk: "TestConformance has the same server on one",
	})
}

// at opens what is at a URL.
func at(url string) func() (*redislock.Backend, error) { return as(url, redislock.Config{}) }

func as(url string, cfg redislock.Config) func() (*redislock.Backend, error) {
	return func() (*redislock.Backend, error) { return redislock.Open(context.Background(), url, cfg) }
}

// opening returns what opens one more backend value for the suite.
func opening(open func() (*redislock.Backend, error)) func(backendtest.T) backend.Backend {
	return func(t backendtest.T) backend.Backend {
		t.Helper()
		b, err := open()
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		return b
	}
}
