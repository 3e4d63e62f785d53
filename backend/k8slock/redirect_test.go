package k8slock_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/k8slock"
)

// TestRedirect: the token is not sent to where a server redirects us, not even with a client that
// follows redirects and adds the token to every request.
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
	opened, err := k8slock.Open(t.Context(), "kubernetes://?kubeconfig="+config, k8slock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(&rest.Config{Host: server.URL, BearerToken: "secret", TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	made, err := k8slock.New(client, server.URL, k8slock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*k8slock.Backend{"Open": opened, "New": made} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err = b.OpenSession(ctx, backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
		if err == nil || len(asked) == 0 {
			t.Errorf("%s: a server that redirects: %v, asked %d times", name, err, len(asked))
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		for len(asked) > 0 {
			<-asked
		}
	}
	if len(stolen) > 0 {
		t.Errorf("the redirect was followed, with the token %q", <-stolen)
	}
}
