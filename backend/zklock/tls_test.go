package zklock_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/zklock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// soon returns a context for what must fail.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// A client that names the authority to trust talks to a server that the authority vouches for, or to none.
func TestTLS(t *testing.T) {
	t.Parallel()
	certs, others := testserver.NewCertificates(t), testserver.NewCertificates(t)
	server := zookeeper()
	secured := certs.Terminate(t, server.Addr())
	at := func(addr, params string) *zklock.Backend {
		b, err := zklock.Open(t.Context(), "zookeeper://"+addr+pathOf(t)+"?"+params, config(t))
		return leasetest.Opened(t, b, err)
	}
	trust := "ca=" + url.QueryEscape(certs.CA)
	b := at(secured, trust)
	leasetest.Take(t, b, leasetest.Ask("n", leasetest.Session(t, b, leasetest.Long, nil)))
	for what, b := range map[string]*zklock.Backend{
		"another authority":    at(secured, "ca="+url.QueryEscape(others.CA)),
		"another name":         at(secured, trust+"&server_name=zookeeper.example.org"),
		"a server without TLS": at(server.Addr(), "tls=true"),
		"a client without TLS": at(secured, "tls=false"),
	} {
		err := b.OpenSession(soon(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: 5 * time.Second})
		if err == nil || errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for params, bound := range map[string]string{"tls=perhaps": "true or false", "tls=false&" + trust: "true, with ca"} {
		_, err := zklock.Open(t.Context(), "zookeeper://h?"+params, zklock.Config{})
		if !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), bound) {
			t.Errorf("%s: %v", params, err)
		}
	}
}
