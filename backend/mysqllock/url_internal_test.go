package mysqllock

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
)

// FuzzURL checks that every URL is parsed, or yields an *InvalidError without the password.
func FuzzURL(f *testing.F) {
	for _, raw := range []string{
		"mysql://u:p@h:1/db?prefix=a_&max_conns=7", "mysql://h/db?tls=true&connect_timeout=2s", "mysql://h/db?socket=/run/s", "mysql://h", "mysql://h/a/b", "mysql:x", "mysql://h/db?tls=maybe", "mysql://h/db#x",
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
			if err == nil && (cfg.Conn == nil || cfg.Conn.DBName == "" || cfg.Conn.Addr == "") {
				t.Errorf("%q: %+v", raw, cfg)
			}
		}
	})
}
