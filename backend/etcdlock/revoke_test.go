package etcdlock_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// revoking returns a backend whose revocations of etcd leases go through a function.
func revoking(t *testing.T, members []*testserver.Etcd, revoke func(send func() error) error) *etcdlock.Backend {
	t.Helper()
	return intercepting(t, members, func(method string, _ any, send func() error) error {
		if strings.HasSuffix(method, "/LeaseRevoke") {
			return revoke(send)
		}
		return send()
	})
}

// Releases travel together, and their etcd leases are revoked one by one. Few are at a time, all are in the end.
func TestRevokesAreFew(t *testing.T) {
	t.Parallel()
	const n, most = 40, 4
	members := etcd(t)
	var now, peak atomic.Int64
	open := make(chan struct{})
	b := revoking(t, members, func(send func() error) error {
		defer now.Add(-1)
		if at := now.Add(1); at > peak.Load() {
			peak.Store(at)
		}
		<-open
		return send()
	})
	for _, req := range takeTimed(t, b, n, time.Hour) {
		leasetest.Give(t, b, req)
	}
	leasetest.Eventually(t, "as many as may are being revoked", func() bool { return now.Load() >= most })
	close(open)
	c := raw(t, members)
	leasetest.Eventually(t, "revoked", func() bool { return len(leases(t, c)) == 0 })
	if peak.Load() > most {
		t.Errorf("%d etcd leases were revoked at the same time", peak.Load())
	}
}

// What a session holds ends when EndSession has succeeded, also where another value opened it, and an earlier attempt got
// no further than its record.
func TestEndOfAnothersSessionIsRetried(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	errFirst, first := errors.New("not sent"), atomic.Bool{}
	first.Store(true)
	b, other := revoking(t, members, func(send func() error) error {
		if first.Swap(false) {
			return errFirst
		}
		return send()
	}), direct(t, members)
	s := leasetest.Session(t, other, time.Minute, nil)
	req := leasetest.Ask("lock", s)
	leasetest.Take(t, other, req)
	if err := b.EndSession(t.Context(), s); !errors.Is(err, errFirst) {
		t.Fatal(err)
	}
	if err := b.EndSession(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if info, err := b.Inspect(t.Context(), req.Name); err != nil || len(info.Holders) > 0 {
		t.Errorf("%+v, %v", info, err)
	}
}

// logged is a log that is written concurrently.
type logged struct {
	bytes.Buffer

	done chan struct{} // closed when something was written
}

func (l *logged) Write(p []byte) (int, error) {
	defer close(l.done)
	return l.Buffer.Write(p)
}

// The client of a program may name a user in its endpoints.
func TestPasswordIsNotLogged(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://user:sesame@" + testserver.Endpoints(members)[0]}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	log := &logged{done: make(chan struct{})}
	b, err := etcdlock.New(client, etcdlock.Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	<-log.done // Debian's version is warned about
	if strings.Contains(log.String(), "sesame") || !strings.Contains(log.String(), testserver.Endpoints(members)[0]) {
		t.Error(log.String())
	}
}
