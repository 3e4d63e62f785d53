package connect_test

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

var errWrong = errors.New("tls: failed to verify certificate: x509: certificate signed by unknown authority")

// All endpoints have to refuse, by their last attempts. The end of a connection is no refusal.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	var e connect.Endpoints
	changed, _ := e.Refusal(2)
	e.Tried("a", errWrong)
	select {
	case <-changed:
	default:
		t.Error("a refusal is not reported")
	}
	for _, step := range []struct {
		endpoint string
		err      error
		refused  bool
	}{
		{"a", errWrong, false},
		{"b", io.EOF, false},
		{"b", errWrong, true},
		{"a", io.EOF, false}, // it restarts
		{"a", errWrong, true},
		{"b", nil, false},
	} {
		e.Tried(step.endpoint, step.err)
		if _, err := e.Refusal(2); (err != nil) != step.refused {
			t.Errorf("after %s: %v: %v", step.endpoint, step.err, err)
		}
	}
}

// A refusal counts for a while: who hears nothing more of the endpoint does not know whether it still refuses.
func TestOldRefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var e connect.Endpoints
		for _, wait := range []time.Duration{0, time.Minute} { // also when it refuses again
			time.Sleep(wait)
			if _, err := e.Refusal(1); err != nil {
				t.Errorf("refused long ago: %v", err)
			}
			e.Tried("a", errWrong)
			if _, err := e.Refusal(1); err == nil {
				t.Error("refused just now")
			}
		}
	})
}

// What no time mends is refused, with a remedy for the store. What a server does that restarts is not.
func TestRefusedTLS(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"x509: certificate signed by unknown authority":                                                   "name the certificate authority of the server with ca",
		"x509: certificate is valid for localhost, not db.example.org":                                    "use a name that is in the certificate of the server, or set server_name",
		"x509: certificate is not valid for any names, but wanted to match db.example.org":                "use a name that is in the certificate of the server, or set server_name",
		"x509: certificate has expired or is not yet valid: current time 2026-11-25 is after 2026-11-24":  "renew the certificate",
		"x509: certificate has expired or is not yet valid: current time 2026-11-25 is before 2026-11-26": "",
		"EOF":                      "",
		"connection reset by peer": "",
		"tls: first record does not look like a TLS handshake": "use etcd:// for a server without TLS, or the port with it",
		"Client sent an HTTP request to an HTTPS server.":      "use etcds:// for a server with TLS, or the port without it",
	} {
		err := connect.Refused("etcd", errors.New(text), "")
		refused, ok := errors.AsType[*backend.RefusedError](err)
		if ok != (want != "") || ok && refused.Remedy != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}
