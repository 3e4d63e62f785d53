package pglock

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
)

// FuzzURL checks that every URL is parsed, or yields an *InvalidError without the password.
func FuzzURL(f *testing.F) {
	for _, raw := range []string{
		"postgres://u:p@h:1/db?schema=a&max_conns=7", "postgresql://h/db?sslmode=disable&listen=false", "postgres://h?connect_timeout=2", "postgres://", "postgres://h:x/db", "mysql://h/db", "postgres://h/db?schema=a.b",
	} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		const canary = "canary-7f3a"
		for _, raw := range []string{raw, strings.Replace(raw, "://", "://u:"+canary+"@", 1)} {
			cfg, err := ParseURL(raw)
			if err != nil && (!errors.Is(err, backend.ErrInvalid) || strings.Contains(err.Error(), canary)) {
				t.Errorf("%q: %v", raw, err)
			}
			if err == nil && cfg.Conn == nil {
				t.Errorf("%q: %+v", raw, cfg)
			}
		}
	})
}
