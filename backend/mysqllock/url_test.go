package mysqllock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

func TestURL(t *testing.T) {
	t.Parallel()
	cfg, err := mysqllock.ParseURL("mysql://u:p%40ss@one:3307/db?tls=true&prefix=locks_&max_conns=4&connect_timeout=2")
	if err != nil {
		t.Fatal(err)
	}
	c := cfg.Conn
	if cfg.Prefix != "locks_" || cfg.MaxConns != 4 || c.Addr != "one:3307" || c.Net != "tcp" || c.User != "u" || c.Passwd != "p@ss" || c.DBName != "db" ||
		c.TLSConfig != "true" || c.Timeout != 2*time.Second {
		t.Errorf("%+v, %+v", cfg, c)
	}
	cfg, err = mysqllock.ParseURL("mysql://u@localhost/db?socket=/run/mysqld/mysqld.sock")
	if c := cfg.Conn; err != nil || c.Net != "unix" || c.Addr != "/run/mysqld/mysqld.sock" || c.TLSConfig != "false" {
		t.Errorf("%+v, %v", cfg.Conn, err)
	}
	for url, mode := range map[string]string{ // what crosses a network is verified unless the URL says otherwise
		"mysql://h/db": "true", "mysql://h/db?tls=skip-verify": "skip-verify", "mysql://h/db?tls=false": "false",
		"mysql://10.0.0.1/db": "true", "mysql://localhost/db": "preferred", "mysql://[::1]/db": "preferred", "mysql://h/db?socket=/s": "false",
	} {
		cfg, err = mysqllock.ParseURL(url)
		if c := cfg.Conn; err != nil || c.TLSConfig != mode {
			t.Errorf("%s: %+v, %v", url, cfg.Conn, err)
		}
	}
}

func TestBadURLs(t *testing.T) {
	t.Parallel()
	const secret = "canary-7d31"
	for _, url := range []string{
		"", "mysql", "redis://h", "mysql://h", "mysql://h/", "mysql://h/d/e", "mysql:h/d", "mysql://h/d?nope=1", "mysql://h/d?prefix=", "mysql://h/d?prefix=A",
		"mysql://h/d?prefix=1a", "mysql://h/d?prefix=a;b", "mysql://h/d?max_conns=2", "mysql://h/d?max_conns=0", "mysql://h/d?max_conns=x", "mysql://h/d?tls=maybe",
		"mysql://h/d?tls=true&tls=true", "mysql://h/d?socket=x", "mysql://h/d?connect_timeout=0", "mysql://h/d?connect_timeout=1h",
		"mysql://u:" + secret + "@h:port/d", "mysql://u:" + secret + "@h/d#x", "mysql://u:" + secret + "%zz@h/d", "mysql://h/d?%zz=1",
		"mysql://u:" + secret + "@h/d?password=" + secret,
	} {
		b, err := mysqllock.Open(t.Context(), url, mysqllock.Config{})
		if err == nil {
			_ = b.Close()
		}
		if !errors.Is(err, backend.ErrInvalid) || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", url, err)
		}
	}
	if _, err := mysqllock.New(mysqllock.Config{}); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("New without Conn: %v", err)
	}
}

// The error for an unreachable server does not contain the password.
func TestNoSecretInErrors(t *testing.T) {
	t.Parallel()
	const secret = "canary-7d31"
	b := open(t, "mysql://u:"+secret+"@127.0.0.1:1/d?connect_timeout=1")
	_, err := b.Inspect(leasetest.Within(t), "n")
	if !errors.Is(err, backend.ErrUnavailable) || strings.Contains(err.Error(), secret) {
		t.Errorf("Inspect: %v", err)
	}
}
