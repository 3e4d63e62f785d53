package remotelock_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/remotelock"
)

func TestURL(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"holdfast://localhost", "holdfast://[::1]:1", "holdfasts://h/base/", "holdfasts://:secret@h:7420", "holdfast://:secret@[::1]", "holdfast+unix:///run/h.sock", "holdfasts://:secret@a,b:1,[::1]:2,[::1]/base?server_name=x", "holdfast://:secret@localhost,127.0.0.1:1", "holdfasts://:sec%2Fret@h/a%40b", "holdfast+unix:///run/a%40b.sock"} {
		b, err := remotelock.New(good, remotelock.Config{})
		if err != nil {
			t.Errorf("%s: %v", good, err)
			continue
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{
		"", "localhost:7420", "http://h", "holdfast://", "holdfast://:7420", "holdfast://h?x=1", "holdfast://h?", "holdfast://h#f",
		"holdfast://:secret@h:0", "holdfast://:secret@h:65536", "holdfast://user:secret@h", "holdfast://user@h", "holdfast://:secret@h:port", "holdfast://:secret@h?x=1",
		"holdfast://:secret@h", "holdfast+unix://h/s", "holdfast+unix:///s/", "holdfast+unix://", "holdfast://h?ca=x", "holdfasts://h?ca=/none",
		"holdfasts://h?token_file=/none", "holdfast://h?token_file=url_test.go", "holdfast://localhost,h?token_file=url_test.go", "holdfasts://h?server_name=a&server_name=b",
		"holdfast://a,", "holdfast://,a", "holdfast://a,,b", "holdfast://a,b:0", "holdfast://a,secret@b", "holdfast://:secret@localhost,b", "holdfast+unix:///run/a,b/",
		"holdfast://a" + strings.Repeat(",a", 16), "holdfast://a,b c", "holdfast://a,b:port",
		"holdfasts://:secret@h/a@b", "holdfasts://h/a@b", "holdfast+unix:///run/a@b.sock", "holdfasts://:secret/x@h",
	} {
		_, err := remotelock.New(bad, remotelock.Config{})
		if _, ok := errors.AsType[*backend.InvalidError](err); !ok || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", bad, err)
		}
		if hint := strings.Contains(bad, "/a@b") || strings.Contains(bad, "secret/x"); hint != strings.Contains(err.Error(), "%40") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// serving returns a backend on a server with this handler, and the server.
func serving(t *testing.T, handler http.HandlerFunc) (*remotelock.Backend, *httptest.Server) {
	t.Helper()
	s := httptest.NewServer(handler)
	b, err := remotelock.New("holdfast://"+s.Listener.Addr().String(), remotelock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		s.Close()
	})
	return b, s
}

// canned returns a backend on a server that always gives the same answer.
func canned(t *testing.T, status int, kind, body string) *remotelock.Backend {
	t.Helper()
	b, _ := serving(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Retry-After", "7")
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
	return b
}
