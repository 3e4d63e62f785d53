package otel_test

import (
	"context"
	"fmt"
	"strings"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/observe/otel"
)

// The metrics have the kind of a lock, and not its name.
func Example() {
	ctx := context.Background()
	spans := tracetest.NewInMemoryExporter()
	t, err := otel.New(otel.Options{
		Tracers: sdk.NewTracerProvider(sdk.WithSyncer(spans)),
		Backend: "memory",
		Name: func(lock string) string {
			kind, _, _ := strings.Cut(lock, ":")
			return kind
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	b := memlock.NewStore().Open()
	defer b.Close()
	locks, err := holdfast.New(b, holdfast.Config{Hooks: t.Hooks()})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = locks.Do(ctx, "order:7", func(context.Context, *holdfast.Lock) error { return nil })
	fmt.Println(err, locks.Close(ctx)) // Close waits for the hooks
	for _, s := range spans.GetSpans() {
		fmt.Println(s.Name)
	}
	// Output:
	// <nil> <nil>
	// holdfast.acquire
	// holdfast.hold
}
