package pglock_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// A client that names the authority to trust talks, encrypted, to a server that the authority
// vouches for, or to none.
func TestTLS(t *testing.T) {
	t.Parallel()
	certs, others := testserver.NewCertificates(t), testserver.NewCertificates(t)
	certs.For(t, "postgres")
	s := testserver.Postgres(t, "ssl=on", "ssl_cert_file="+certs.ServerCert, "ssl_key_file="+certs.ServerKey)
	plain := testserver.Postgres(t)
	at := func(s *testserver.PostgresServer, parameters string) string {
		base, _, _ := strings.Cut(strings.TrimPrefix(s.URL(), "postgres"), "?")
		return base + "?application_name=app&" + parameters
	}
	both := func(rest string) map[string]backend.Backend {
		return map[string]backend.Backend{"leases": open(t, "postgres"+rest), "advisory locks": openAdvisory(t, "postgres+advisory"+rest)}
	}
	trust := "sslmode=verify-full&sslrootcert=" + url.QueryEscape(certs.CA)
	for name, b := range both(at(s, trust)) {
		r := leasetest.Ask("n", leasetest.Session(t, b, leasetest.Long, nil))
		if leasetest.Take(t, b, r) == 0 {
			t.Errorf("%s: no token", name)
		}
		leasetest.Give(t, b, r)
	}
	const conns = `SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'app' AND ssl`
	if ssl, open := s.Int(conns), s.Int(strings.Replace(conns, "AND ssl", "AND NOT ssl", 1)); ssl == 0 || open != 0 {
		t.Errorf("%d connections are encrypted, %d are not", ssl, open)
	}
	refused := func(what, rest, why string) {
		t.Helper()
		for name, b := range both(rest) {
			err := b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
			if !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), why) {
				t.Errorf("%s, %s: %v", what, name, err)
			}
		}
	}
	refused("another authority", at(s, "sslmode=verify-full&sslrootcert="+url.QueryEscape(others.CA)), "certificate signed by unknown authority")
	refused("a server without TLS", at(plain, trust), "refused TLS")
	if n := plain.Int(`SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'holdfast%'`); n != 0 {
		t.Errorf("%d schemas were made over a connection in plain text", n)
	}
}

// B: the certificate of the client, is replaced while the client runs.
func TestCertificateIsReplaced(t *testing.T) {
	t.Parallel()
	certs, others := testserver.NewCertificates(t), testserver.NewCertificates(t)
	certs.For(t, "postgres")
	others.For(t, "postgres")
	s := testserver.Postgres(t, "ssl=on", "ssl_cert_file="+certs.ServerCert, "ssl_key_file="+certs.ServerKey)
	s.Exec(`ALTER SYSTEM SET ssl_ca_file = '`+certs.CA+`'`, `SELECT pg_reload_conf()`)
	s.WantCertificate("app")
	s.Exec(`GRANT CREATE ON DATABASE postgres TO app`)
	files := "sslmode=verify-full&sslrootcert=" + url.QueryEscape(certs.CA) + "&sslcert=" + url.QueryEscape(certs.ClientCert) + "&sslkey=" + url.QueryEscape(certs.ClientKey)
	base := strings.Replace(s.URLOf("app", s.Addr()), "sslmode=disable", files, 1)
	all := map[string]backend.Backend{"leases": open(t, base), "advisory locks": openAdvisory(t, strings.Replace(base, "postgres:", "postgres+advisory:", 1))}
	opens := func(b backend.Backend) error {
		return leasetest.InsistOn(t, func(ctx context.Context) error {
			return b.OpenSession(ctx, backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
		})
	}
	for name, b := range all {
		if err := opens(b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for from, to := range map[string]string{others.ClientCert: certs.ClientCert, others.ClientKey: certs.ClientKey} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.Exec(`ALTER SYSTEM SET ssl_ca_file = '`+others.CA+`'`, `SELECT pg_reload_conf()`, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'app'`)
	for name, b := range all {
		if err := opens(b); err != nil {
			t.Errorf("after they were replaced, %s: %v", name, err)
		}
	}
}
