package runner

import (
	"strings"
	"testing"
)

// FuzzEndpoints: a relay replaces every host of a URL and changes nothing else of it; the URL
// for people has no password.
func FuzzEndpoints(f *testing.F) {
	for _, raw := range []string{
		"redis://u:p@h:7/3?prefix=a", "etcd://a:1,b,[::1]:3", "postgres://u@h/db?sslmode=verify-full", "mysql://h/db?tls=true", "redis://", "x", "redis://@@/?password=x",
	} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if e, ok := parseEndpoints(raw); ok {
			if len(e.hosts) == 0 {
				t.Errorf("%q has no hosts", raw)
			}
			again, ok := parseEndpoints(e.with(e.hosts))
			if !ok || again.scheme != e.scheme || again.user != e.user || again.rest != e.rest || len(again.hosts) != len(e.hosts) {
				t.Errorf("%q: %+v, and then %+v", raw, e, again)
			}
		}
		const canary = "canary-7f3a"
		if shown := Shown(strings.Replace(raw, "://", "://u:"+canary+"@", 1)); !strings.Contains(raw, canary) && strings.Contains(shown, canary) {
			t.Errorf("%q is shown as %q", raw, shown)
		}
	})
}
