package health_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/observe/health"
)

// A checker is a handler too. It answers 503 when no lock can be acquired.
func Example() {
	ctx := context.Background()
	b := memlock.New()
	locks, err := holdfast.New(b, holdfast.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close(ctx)
	check, err := health.New(locks, b, health.Config{Slow: time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	report := check.Check(ctx)
	fmt.Println(report.Backend, report.Status, report.Err)

	_ = b.Close() // the store is unavailable from here on
	answer := httptest.NewRecorder()
	check.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/healthz/locks", nil))
	fmt.Println(answer.Code)
	// Output:
	// memory healthy <nil>
	// 503
}
