package server_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/server"
)

// A program that has an HTTP server of its own uses the Handler. Serve does it all on a listener.
func ExampleServer_Handler() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	srv, err := server.New(b, server.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer srv.Close(ctx)
	web := httptest.NewServer(srv.Handler())
	defer web.Close()

	const body = `{"ttl":"30s","owner":"w7","lease":"%s"}`
	for _, lease := range []string{"lease-of-the-first", "lease-of-the-second"} {
		answer, err := web.Client().Post(web.URL+"/v1/locks/order:123", "application/json", strings.NewReader(fmt.Sprintf(body, lease))) //nolint:noctx // an example
		if err != nil {
			fmt.Println(err)
			return
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		fmt.Println(answer.StatusCode, http.StatusText(answer.StatusCode))
	}
	// Output:
	// 200 OK
	// 409 Conflict
}
