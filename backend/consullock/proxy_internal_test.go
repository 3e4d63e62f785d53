package consullock

import (
	"net/http"
	"testing"
)

// TestNoProxyInTheClear: a proxy that the environment names never reads what is sent without
// TLS.
func TestNoProxyInTheClear(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://locks.example/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if proxy, err := proxyOf(req); proxy != nil || err != nil {
		t.Errorf("plain HTTP goes to the proxy %v, %v", proxy, err)
	}
}
