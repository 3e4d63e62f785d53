package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

// FuzzRequest acquires a free lock, renews it and reads it, with any body, parameters and
// header: either it is granted, or the answer says what is wrong with the request. It is never
// an error of the server.
func FuzzRequest(f *testing.F) {
	for _, body := range []string{
		`{}`, `{"ttl":"30s","owner":"w7","limit":3,"permits":2,"shared":true,"note":"x"}`, `{"ttl":"-1s"}`, `{"ttl":9223372036854775807}`, `{"wait":"1h"}`,
		`{"leases":[{"name":"n","lease":"0123456789abcdef","ttl":"30s"}]}`, `{"lease":"0123456789abcdef"}`,
		`{"acquire":[{"name":"n","lease":"0123456789abcdef","ttl":"30s","limit":3,"permits":2},{"name":"n","lease":"0123456789abcdeg"}],"release":[{"name":"n","lease":"0123456789abcdef"}]}`,
		`{"acquire":[{"name":"","lease":"x","ttl":"1ms"},{"name":"n","lease":"0123456789abcdef"},{"name":"n","lease":"0123456789abcdef"}]}`, `{"release":[{"name":"..","lease":""}]}`,
		`{"limit":1e9}`, `[`, `{"ttl":"30s","ttl":"1s"}`,
	} {
		f.Add([]byte(body), "", "5s")
		f.Add([]byte(body), "prefix=a&limit=7&after=%00", "x")
	}
	store := memlock.NewStore().Open()
	srv, err := server.New(store, server.Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _, _ = srv.Close(context.Background()), store.Close() })
	f.Fuzz(func(t *testing.T, body []byte, query, keep string) {
		if bytes.Contains(body, []byte("wait")) {
			t.Skip("the lock may be taken")
		}
		name := "n/" + string(backend.NewLeaseID())
		for _, ask := range [][2]string{
			{http.MethodPost, "/v1/locks/" + name},
			{http.MethodPost, "/v1/leases/renew"},
			{http.MethodPost, "/v1/leases/batch"},
			{http.MethodGet, "/v1/locks"},
			{http.MethodPut, "/v1/locks/" + name + "/leases/0123456789abcdef"},
			{http.MethodDelete, "/v1/locks/" + name},
		} {
			req := httptest.NewRequestWithContext(t.Context(), ask[0], ask[1], bytes.NewReader(body))
			req.URL.RawQuery = query
			req.Header.Set(wire.HeaderKeepPlace, keep)
			answer := httptest.NewRecorder()
			srv.ServeHTTP(answer, req)
			if answer.Code >= http.StatusInternalServerError || answer.Code < http.StatusOK {
				t.Errorf("%s %s?%s with %q is answered %d: %s", ask[0], ask[1], query, body, answer.Code, answer.Body)
			}
			parts := [][]byte{answer.Body.Bytes()}
			if answer.Header().Get("Content-Type") == wire.ContentTypeLines {
				parts = bytes.Split(bytes.TrimSuffix(parts[0], []byte("\n")), []byte("\n"))
			}
			for _, b := range parts {
				if len(b) > 0 && !json.Valid(b) {
					t.Errorf("%s %s?%s with %q is answered %q, which is no JSON", ask[0], ask[1], query, body, b)
				}
			}
		}
	})
}
