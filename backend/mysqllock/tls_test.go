package mysqllock_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// both opens both backends of this package at the rest of a URL, after the scheme.
func both(t *testing.T, rest string) map[string]backend.Backend {
	t.Helper()
	return map[string]backend.Backend{"leases": open(t, "mysql"+rest), "user locks": openUserLocks(t, "mysql+getlock"+rest)}
}

// A client that names the authority to trust talks, encrypted, to a server that the authority
// vouches for, or to none.
func TestTLS(t *testing.T) {
	t.Parallel()
	certs, others := testserver.NewCertificates(t), testserver.NewCertificates(t)
	certs.For(t, "mysql")
	s := testserver.MariaDB(t, "ssl-ca="+certs.CA, "ssl-cert="+certs.ServerCert, "ssl-key="+certs.ServerKey)
	plain := testserver.MariaDB(t)
	// An unencrypted client is not let in.
	s.Exec("CREATE USER app@'127.0.0.1' REQUIRE SSL", "GRANT ALL ON test.* TO app@'127.0.0.1'")
	at := func(s *testserver.MariaDBServer, user, ca string) string {
		return strings.TrimPrefix(s.URLOf(user, s.Addr()), "mysql") + "?tls=true&ca=" + url.QueryEscape(ca)
	}
	for name, b := range both(t, at(s, "app", certs.CA)) {
		r := leasetest.Ask("n", leasetest.Session(t, b, leasetest.Long, nil))
		if leasetest.Take(t, b, r) == 0 {
			t.Errorf("%s: no token", name)
		}
		leasetest.Give(t, b, r)
	}
	if n := s.Int("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = 'app'"); n == 0 {
		t.Error("the server has no connection of the user app: the client connected to another server")
	}
	refused := func(what, rest, why string) {
		t.Helper()
		for name, b := range both(t, rest) {
			err := b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
			if !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), why) {
				t.Errorf("%s, %s: %v", what, name, err)
			}
		}
	}
	refused("another authority", at(s, "root", others.CA), "certificate signed by unknown authority")
	refused("the system's authorities", strings.TrimPrefix(s.URL(), "mysql")+"?tls=true", "certificate signed by unknown authority")
	refused("a server without TLS", at(plain, "root", certs.CA), "does not support TLS")
	refused("a user who has to be encrypted", strings.TrimPrefix(s.URLOf("app", s.Addr()), "mysql")+"?tls=false", "Access denied")
	if n := plain.Int("SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'test'"); n != 0 {
		t.Errorf("%d tables were made over a connection in plain text", n)
	}
}
