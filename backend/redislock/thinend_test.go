package redislock_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// A thin lease whose session has expired is lost, and a release of it says so, although what is
// left of it is still on record.
func TestThinReleasedTooLate(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for _, reaped := range []bool{false, true} {
		t.Run(fmt.Sprint("reaped ", reaped), func(t *testing.T) {
			t.Parallel()
			s, cfg := quick(t, "--appendonly", "no") // the disk does not delay it
			b, other := open(t, s, cfg), open(t, s, cfg)
			const ttl = 12 * time.Second // the lock is taken in this time
			id := session(t, b, ttl)
			l := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
			isThin(t, s, "one", true)
			time.Sleep(ttl + ttl/10)
			if reaped {
				if info, err := other.Inspect(t.Context(), "two"); err != nil || len(info.Holders) > 0 {
					t.Errorf("%+v, %v", info, err)
				}
			}
			isThin(t, s, "one", true)
			err := b.Release(t.Context(), backend.ReleaseRequest{Name: "one", Lease: l.Lease, Session: id})
			if !errors.Is(err, backend.ErrLost) {
				t.Errorf("release: %v", err)
			}
		})
	}
}

// A release goes the short way for as long as renewals say that the session lives.
func TestThinReleasedAfterRenewal(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	ttl, l := keptThin(t, b, 1.1, func() {})
	s.ResetStats()
	asked := time.Now()
	release(t, b, l)
	if stats := s.CommandStats(); time.Since(asked) < ttl/2 && stats["fcall"] > 0 {
		t.Errorf("the release is %v", stats)
	}
}

// The name of the stream ended while the beginning of a watch inflated what is thin, which takes
// more than one request: what was released until the next request was no event, so the stream
// that others have listened to must not continue under its old name.
func TestStreamEndsWhileInflating(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b, other := open(t, s, cfg), open(t, s, cfg)
	id := session(t, b, time.Hour)
	const many = 1500 // more than one request inflates
	takeMany(t, b, id, many)
	var streams []string
	other.Intercept(func(op string, do func()) {
		do()
		if op == "watch" {
			streams = append(streams, fmt.Sprint(s.Do("GET", "{hf0}:v")))
			if len(streams) == 1 {
				s.Do("DEL", "{hf0}:v")
			}
		}
	})
	watching(t, other)
	if len(streams) < 2 || streams[0] == streams[1] {
		t.Errorf("the streams are %q", streams)
	}
}
