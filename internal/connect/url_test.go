package connect_test

import (
	"bytes"
	"encoding/pem"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/certs"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// Every error is about the URL or a parameter, and has nothing in it that may be a password.
func TestParams(t *testing.T) {
	t.Parallel()
	params, err := connect.Params("prefix=a%2Fb&timeout=2s", "prefix", "timeout")
	if err != nil || params.Get("prefix") != "a/b" {
		t.Errorf("%v, %v", params, err)
	}
	for query, want := range map[string]string{
		"prefx=a":             `url "prefx": must be one of the parameters prefix, timeout`,
		"prefix=a&prefix=b":   `url "prefix": must be with each parameter once, and not empty`,
		"prefix=":             `url "prefix": must be with each parameter once, and not empty`,
		"%zz=" + "hunter2":    `url "?…": must be with parameters as name=value, percent-encoded`,
		"Hunter2@host?db=1":   `url "…": must be one of the parameters prefix, timeout`,
		"p4ss@example.org:63": `url "…": must be one of the parameters prefix, timeout`,
	} {
		_, err := connect.Params(query, "prefix", "timeout")
		if err == nil || err.Error() != want || !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: %v, want %s", query, err, want)
		}
	}
	d := time.Minute
	if err := connect.Duration(params, "ttl", &d); err != nil || d != time.Minute {
		t.Errorf("a parameter that is not given: %s, %v", d, err)
	}
	if err := connect.Duration(params, "timeout", &d); err != nil || d != 2*time.Second {
		t.Errorf("%s, %v", d, err)
	}
	for _, bad := range []string{"2", "-1s", "0s", "x"} {
		if err := connect.Duration(url.Values{"timeout": {bad}}, "timeout", &d); !errors.Is(err, backend.ErrInvalid) || d != 2*time.Second {
			t.Errorf("%s: %v, and it is %s", bad, err, d)
		}
	}
	if user, password, err := connect.User("u%40x:p%3Aw"); user != "u@x" || password != "p:w" || err != nil {
		t.Errorf("%q, %q, %v", user, password, err)
	}
	if _, _, err := connect.User("u:secret%"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
	if q := connect.Quote(strings.Repeat("é\n", 100)); len(q) > 110 || !strings.HasSuffix(q, `…"`) {
		t.Error(q)
	}
}

func TestLoopback(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"localhost": true, "127.0.0.1": true, "127.9.9.9": true, "::1": true, "::ffff:127.0.0.1": true, "/run/postgresql": true, "": true,
		"db.example.org": false, "10.0.0.1": false, "localhost.example.org": false, "0.0.0.0": false, "::": false,
	} {
		if got := connect.Loopback(host); got != want {
			t.Errorf("%q: %t", host, got)
		}
	}
}

// A certificate that was replaced is used for the next connection; one half of a replacement is not.
func TestTLSReplaced(t *testing.T) {
	t.Parallel()
	first, err := certs.Loopback(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	next, err := certs.Loopback(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	conf, err := connect.TLS(url.Values{"cert": {first.ClientCert}, "key": {first.ClientKey}}, true, "etcds")
	if err != nil {
		t.Fatal(err)
	}
	uses := func(what, file string) {
		t.Helper()
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got, err := conf.GetClientCertificate(nil)
		if err != nil || !bytes.Equal(want, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: got.Certificate[0]})) {
			t.Errorf("%s: another certificate, %v", what, err)
		}
	}
	uses("at first", first.ClientCert)
	kept := filepath.Join(t.TempDir(), "kept")
	if err := errors.Join(os.Link(first.ClientCert, kept), os.Rename(next.ClientKey, first.ClientKey)); err != nil {
		t.Fatal(err)
	}
	uses("half replaced", kept)
	if err := os.Rename(next.ClientCert, first.ClientCert); err != nil {
		t.Fatal(err)
	}
	uses("replaced", first.ClientCert)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if conf, err := connect.TLS(nil, false, "etcds"); conf != nil || err != nil {
		t.Errorf("%v, %v", conf, err)
	}
	if conf, err := connect.TLS(url.Values{"server_name": {"x"}}, true, "etcds"); err != nil || conf.ServerName != "x" || conf.RootCAs != nil {
		t.Errorf("%v, %v", conf, err)
	}
	for query, want := range map[string]string{
		"ca=/nowhere":           "ca",
		"ca=" + empty:           "ca",
		"cert=/a":               "url",
		"cert=/nowhere&key=/no": "cert",
	} {
		params, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		var invalid *backend.InvalidError
		if _, err := connect.TLS(params, true, "etcds"); !errors.As(err, &invalid) || invalid.Field != want {
			t.Errorf("%s: %v", query, err)
		}
		if _, err := connect.TLS(params, false, "etcds"); !errors.As(err, &invalid) || invalid.Field != "url" {
			t.Errorf("%s without TLS: %v", query, err)
		}
	}
}
