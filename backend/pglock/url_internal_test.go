package pglock

import (
	"errors"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

func FuzzURL(f *testing.F) {
	leasetest.FuzzURL(f, func(raw string) error {
		cfg, err := ParseURL(raw)
		if err == nil && cfg.Conn == nil {
			err = errors.New("no connection is configured")
		}
		return err
	},
		"postgres://u:p@h:1/db?schema=a&max_conns=7", "postgresql://h/db?sslmode=disable&listen=false", "postgres://h?connect_timeout=2", "postgres://",
		"postgres://h:x/db", "mysql://h/db", "postgres://h/db?schema=a.b")
}

// What crosses a network is verified unless the URL or the environment says otherwise.
func TestTLSIsVerified(t *testing.T) {
	t.Setenv("PGSSLMODE", "")
	for url, want := range map[string]bool{
		"postgres://h/d": true, "postgres://10.0.0.1/d": true, "postgres://127.0.0.1,h/d": true, "postgres://h/d?sslmode=verify-ca": true,
		"postgres://h/d?sslmode=prefer": false, "postgres://h/d?sslmode=disable": false, "postgres://127.0.0.1/d": false,
		"postgres://localhost/d": false, "postgres:///d?host=/run/postgresql": false,
	} {
		cfg, err := parseURL(url, Config{}, ours(), "postgres")
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		verified := cfg.Conn.TLSConfig != nil && (!cfg.Conn.TLSConfig.InsecureSkipVerify || cfg.Conn.TLSConfig.VerifyPeerCertificate != nil)
		for _, f := range cfg.Conn.Fallbacks {
			verified = verified && f.TLSConfig != nil
		}
		if verified != want {
			t.Errorf("%s: verified: %t", url, verified)
		}
	}
}
