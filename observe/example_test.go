package observe_test

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/observe"
)

// Backend measures the calls of the backend, and Hooks counts what happens to the locks.
func ExampleNewPrometheus() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	registry := prometheus.NewRegistry()
	m, err := observe.NewPrometheus(registry, observe.Options{Backend: "memory"})
	if err != nil {
		fmt.Println(err)
		return
	}
	locks, err := holdfast.New(m.Backend(b), holdfast.Config{Hooks: m.Hooks()})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = locks.Do(ctx, "order:123", func(context.Context, *holdfast.Lock) error { return nil })
	fmt.Println(err, locks.Close(ctx))

	families, err := registry.Gather()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			if f.GetName() != "holdfast_acquire_total" || metric.GetCounter().GetValue() == 0 {
				continue
			}
			for _, l := range metric.GetLabel() {
				fmt.Println(l.GetName(), l.GetValue())
			}
		}
	}
	// Output:
	// <nil> <nil>
	// backend memory
	// mode exclusive
	// result acquired
}
