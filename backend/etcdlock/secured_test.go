package etcdlock_test

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

const (
	user     = "locker"
	password = "p@ss/word:?"
)

// secured starts an etcd that requires a certificate and a password, and returns its certificates.
func secured(t *testing.T, o testserver.EtcdOptions) (*testserver.Etcd, *testserver.Certificates) {
	t.Helper()
	o.Certificates = testserver.NewCertificates(t)
	m := testserver.StartEtcd(t, o)[0]
	m.Authenticate(user, password, "team/locks/")
	return m, o.Certificates
}

// securedURL returns the URL of a client with these certificates.
func securedURL(m *testserver.Etcd, as *url.Userinfo, params url.Values) string {
	for name, value := range map[string]string{"min_ttl": "1s", "prefix": "team/locks"} {
		if !params.Has(name) {
			params.Set(name, value)
		}
	}
	return (&url.URL{Scheme: "etcds", User: as, Host: m.Addr(), RawQuery: params.Encode()}).String()
}

func files(c *testserver.Certificates) url.Values {
	return url.Values{"ca": {c.CA}, "cert": {c.ClientCert}, "key": {c.ClientKey}}
}

// TestConformanceSecured runs a part of the suite on the newest etcd, over TLS and with a password.
func TestConformanceSecured(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	m, certs := secured(t, testserver.EtcdOptions{Newest: true, NoFsync: true})
	rawURL := securedURL(m, url.UserPassword(user, password), files(certs))
	backendtest.Run(t, backendtest.Harness{
		Open:       func(t backendtest.T) backend.Backend { return openURL(t, rawURL) },
		Only:       leasetest.Transport(),
		Restart:    func(backendtest.T) { m.Restart() },
		NoSlowDisk: "TestConformance has one",
		TTL:        shortest,
	})
}

// TestNotAdmitted: a client that shows no certificate or a wrong one, trusts another authority, has
// no password or may not touch the prefix soon gets an error that says so, and holds nothing.
func TestNotAdmitted(t *testing.T) {
	t.Parallel()
	m, certs := secured(t, testserver.EtcdOptions{NoFsync: true})
	strangers := testserver.NewCertificates(t)
	right := url.UserPassword(user, password)
	for name, c := range map[string]struct {
		url  string
		says string
	}{
		"plain":             {"etcd://" + m.Addr(), "whether the server uses TLS"}, // or the server is restarting
		"no certificate":    {securedURL(m, nil, url.Values{"ca": {certs.CA}}), ""},
		"a stranger's":      {securedURL(m, right, url.Values{"ca": {certs.CA}, "cert": {strangers.ClientCert}, "key": {strangers.ClientKey}}), ""},
		"another authority": {securedURL(m, right, url.Values{"ca": {strangers.CA}, "cert": {certs.ClientCert}, "key": {certs.ClientKey}}), "certificate"},
		"no user":           {securedURL(m, nil, files(certs)), "permission denied"},
		"a wrong password":  {securedURL(m, url.UserPassword(user, "guess"), files(certs)), "authentication failed"},
		"another prefix":    {securedURL(m, right, url.Values{"ca": {certs.CA}, "cert": {certs.ClientCert}, "key": {certs.ClientKey}, "prefix": {"team/other"}}), "permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := takeOne(t, c.url)
			var away *backend.UnavailableError
			if !errors.As(err, &away) || away.MayHold || errors.Is(err, backend.ErrRefused) == (name == "plain") {
				t.Fatalf("Acquire = %v (%#v), want an *UnavailableError that is ErrRefused, and says that nothing is held", err, err)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q does not say %q", err, c.says)
			}
			for _, secret := range []string{"p@ss", "p%40ss", "guess"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("%q tells the password", err)
				}
			}
		})
	}
	for _, param := range []string{"ca", "cert", "key"} {
		params := files(certs)
		params.Set(param, m.Addr())
		if _, err := etcdlock.Open(t.Context(), securedURL(m, right, params), etcdlock.Config{}); err == nil {
			t.Errorf("Open with a %s that is no file succeeded", param)
		}
	}
}

// TestOneEndpointRefuses: a client continues with the other endpoints, and is refused only if all refuse it. One
// that is not there may be restarting.
func TestOneEndpointRefuses(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	m, certs := secured(t, testserver.EtcdOptions{NoFsync: true})
	strangers := testserver.NewCertificates(t)
	broken, another := strangers.Terminate(t, m.Addr()), strangers.Terminate(t, m.Addr())
	absent := "127.0.0.1:" + strconv.Itoa(testserver.FreePort(t))
	for hosts, want := range map[string]error{
		broken + "," + m.Addr(): nil,
		broken + "," + another:  backend.ErrRefused,
		broken + "," + absent:   backend.ErrUnavailable,
	} {
		u := strings.Replace(securedURL(m, url.UserPassword(user, password), files(certs)), m.Addr(), hosts, 1)
		if err := takeOne(t, u); !errors.Is(err, want) || errors.Is(err, backend.ErrRefused) != errors.Is(want, backend.ErrRefused) {
			t.Errorf("%s: %v; want %v", hosts, err, want)
		}
	}
}

// takeOne tries to take one lock, with as much patience as one request has.
func takeOne(t *testing.T, rawURL string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	b, err := etcdlock.Open(ctx, rawURL, etcdlock.Config{})
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }()
	_, err = b.Acquire(ctx, backend.AcquireRequest{Name: "order:1", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute})
	return err
}

// TestUsersChange: every change of users or roles makes etcd refuse the tokens that it issued
// before, and so does a restart. A waiter continues to wait, and callers do not notice.
func TestUsersChange(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]testserver.EtcdOptions{"newest": {Newest: true}, "of Debian": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if o.Newest {
				leasetest.Slow(t)
			}
			usersChange(t, o)
		})
	}
}

func usersChange(t *testing.T, o testserver.EtcdOptions) {
	t.Helper()
	m, certs := secured(t, o)
	b := openURL(t, securedURL(m, url.UserPassword(user, password), files(certs)))
	t.Cleanup(func() { _ = b.Close() })
	s := kept(t, b)
	held := leasetest.Ask("order:1", s)
	if _, err := b.Acquire(t.Context(), held); err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	next := leasetest.Ask("order:1", s)
	done := leasetest.Start(t, b, next)
	leasetest.Eventually(t, "the waiter is in the queue", func() bool { return b.Waiting("order:1") == 1 })
	m.Do("auth/user/add", map[string]any{"name": "somebody", "password": "else"})
	other := leasetest.Ask("order:2", s)
	if _, err := b.Acquire(t.Context(), other); err != nil {
		t.Errorf("Acquire after users changed: %v", err)
	}
	m.Restart()
	again := leasetest.Ask("order:3", s)
	leasetest.Take(t, b, again)
	leasetest.Give(t, b, again)
	leasetest.Give(t, b, held)
	if r := <-done; r.Err != nil {
		t.Errorf("the waiter: %v", r.Err)
	}
	leasetest.Give(t, b, next)
	leasetest.Give(t, b, other)
}

// The error of a server that is not there says so, also where the client of etcd only waits for a connection.
func TestNotThere(t *testing.T) {
	t.Parallel()
	absent := "127.0.0.1:" + strconv.Itoa(testserver.FreePort(t))
	for _, u := range []string{"etcd://" + absent, "etcd://u:p@" + absent, "etcds://" + absent} {
		err := takeOne(t, u+"?timeout=1s")
		if !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrRefused) || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("%s: %v; want that the connection was refused", u, err)
		}
	}
}
