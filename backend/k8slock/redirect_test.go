package k8slock_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/k8slock"
)

// TestRedirect: the token is not sent to where a server redirects us.
func TestRedirect(t *testing.T) {
	t.Parallel()
	stolen := make(chan string, 100)
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { stolen <- r.Header.Get("Authorization") }))
	defer thief.Close()
	asked := make(chan struct{}, 100)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		http.Redirect(w, r, thief.URL, http.StatusTemporaryRedirect)
	}))
	defer server.Close()
	config := kubeconfig(t, `{server: "`+server.URL+`", insecure-skip-tls-verify: true}`, `{token: secret}`)
	b, err := k8slock.Open(t.Context(), "kubernetes://?kubeconfig="+config, k8slock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	err = b.OpenSession(ctx, backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
	if err == nil || len(asked) == 0 {
		t.Errorf("a server that redirects: %v, asked %d times", err, len(asked))
	}
	if len(stolen) > 0 {
		t.Errorf("the redirect was followed, with the token %q", <-stolen)
	}
}
