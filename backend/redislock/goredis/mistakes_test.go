package goredis_test

import (
	"crypto/tls"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/backend/redislock/goredis"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// What no retry mends is ErrRefused, within a second.
func TestMistakes(t *testing.T) {
	t.Parallel()
	certs, others := testserver.NewCertificates(t), testserver.NewCertificates(t)
	port := strconv.Itoa(testserver.FreePort(t))
	s := testserver.Redis(t, "--requirepass", "right", "--masterauth", "right",
		"--tls-port", port, "--tls-cert-file", certs.ServerCert, "--tls-key-file", certs.ServerKey, "--tls-ca-cert-file", certs.CA, "--tls-auth-clients", "no")
	secured := "127.0.0.1:" + port
	right := certs.Client(t)
	opened := func(t *testing.T, options redis.Options) error {
		t.Helper()
		client := redis.NewClient(&options)
		t.Cleanup(func() { _ = client.Close() })
		b, err := goredis.New(client, redislock.Config{})
		if err == nil {
			_ = b.Close()
		}
		if away, ok := errors.AsType[*backend.UnavailableError](err); ok && away.MayHold {
			t.Errorf("it says that it may have worked: %v", err)
		}
		return err
	}
	for mistake, options := range map[string]redis.Options{
		"password": {Addr: s.Addr(), Password: "wrong"},
		"none":     {Addr: s.Addr()},
		"database": {Addr: s.Addr(), Password: "right", DB: 999},
		"ca":       {Addr: secured, Password: "right", TLSConfig: others.Client(t)},
		"name":     {Addr: secured, Password: "right", TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: right.RootCAs, ServerName: "db.example.org"}},
	} {
		t.Run(mistake, func(t *testing.T) {
			t.Parallel()
			leasetest.Promptly(t, time.Second, func() time.Duration {
				from := time.Now()
				err := opened(t, options)
				took := time.Since(from)
				if !errors.Is(err, backend.ErrRefused) {
					t.Fatalf("%v; want ErrRefused", err)
				}
				return took
			})
		})
	}
	err := opened(t, redis.Options{Addr: "127.0.0.1:" + strconv.Itoa(testserver.FreePort(t))})
	if !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrRefused) {
		t.Errorf("no server: %v", err)
	}
	if err := opened(t, redis.Options{Addr: secured, Password: "right", TLSConfig: right}); err != nil {
		t.Fatalf("the right settings: %v", err)
	}
}
