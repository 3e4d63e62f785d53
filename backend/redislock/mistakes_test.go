package redislock_test

import (
	"errors"
	"strconv"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// Of several servers, all have to refuse the client: one that is not there may be restarting.
func TestOneServerOfAGroupRefuses(t *testing.T) {
	t.Parallel()
	certs := testserver.NewCertificates(t)
	secured := func() string {
		port := strconv.Itoa(testserver.FreePort(t))
		testserver.Redis(t, "--tls-port", port, "--tls-cert-file", certs.ServerCert, "--tls-key-file", certs.ServerKey, "--tls-ca-cert-file", certs.CA)
		return "127.0.0.1:" + port
	}
	broken, another := secured(), secured()
	absent := "127.0.0.1:" + strconv.Itoa(testserver.FreePort(t))
	other := "?ca=" + testserver.NewCertificates(t).CA
	for url, refused := range map[string]bool{
		"rediss+cluster://" + broken + "," + another + other:            true,
		"rediss+cluster://" + broken + "," + absent + other:             false,
		"rediss+sentinel://" + broken + "," + another + "/main" + other: true,
		"rediss+sentinel://" + broken + "," + absent + "/main" + other:  false,
	} {
		b, err := redislock.Open(t.Context(), url, redislock.Config{})
		if !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrRefused) != refused {
			t.Errorf("%s: %v; want a refusal: %t", url, err, refused)
		}
		if b != nil {
			_ = b.Close()
		}
	}
}
