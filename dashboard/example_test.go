package dashboard_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/holdfast-io/holdfast/dashboard"
)

// Serve is a handler for a program that serves the HTTP API itself.
func ExampleServe() {
	page := httptest.NewRecorder()
	dashboard.Serve(page, httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil))
	fmt.Println(page.Code, page.Header().Get("Content-Type"))

	none := httptest.NewRecorder()
	dashboard.Serve(none, httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/etc/passwd", nil))
	fmt.Println(none.Code)
	// Output:
	// 200 text/html; charset=utf-8
	// 404
}
