package redislock_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
)

// Whatever the URL is: it is understood, or it is an *InvalidError which does not tell
// the password.
func FuzzURL(f *testing.F) {
	for _, seed := range []string{
		"redis://127.0.0.1:6379", "rediss://u:p@h/3?timeout=3s&quarantine=off", "redis+unix:///tmp/s.sock?db=1", "redis://:p@[::1]:1?prefix=a",
		"redis://h/x", "redis://h?nope=1", "redis://h?timeout=-1s", "redis://h?ca=/x", "http://h", "redis:h", "redis://u:p@%zz", "\x00", "redis://h#f",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, host string) {
		const secret = "canary-7f3a"
		for _, raw := range []string{host, strings.Replace(host, "://", "://u:"+secret+"@", 1)} {
			err := redislock.ParseURL(raw)
			if err != nil && !errors.Is(err, backend.ErrInvalid) {
				t.Errorf("%q: %v, want an *InvalidError", raw, err)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("%q: the password is told: %v", raw, err)
			}
		}
	})
}

// Whatever comes over the channel: it is understood or dropped, and never breaks anything.
func FuzzPush(f *testing.F) {
	f.Add("g\nLEASE\n1795225850710545\n1795225850710545\n0")
	f.Add("l\nSESSION\nLEASE\nbroken\nreason")
	f.Add("t\nname\n1000000")
	f.Add("d\nLEASE\nS")
	f.Add("f")
	f.Add("g\n\n\n\n")
	f.Fuzz(func(_ *testing.T, text string) {
		_, _ = redislock.ParsePush(text)
		_, _ = redislock.ParseEvent(text)
	})
}
