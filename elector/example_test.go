package elector_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/elector"
)

// Run campaigns until its context ends, or the leader's work is done.
func ExampleElector_Run() {
	ctx := context.Background()
	b := memlock.New() // or open.URL(ctx, "redis://..."), or any other
	defer b.Close()
	locks, _ := holdfast.New(b, holdfast.Config{})
	defer locks.Close(ctx)

	errDone := errors.New("the work is done")
	e, _ := elector.New(locks, "scheduler", elector.Config{Candidate: "pod-7", Value: "10.0.0.7:8080"})
	err := e.Run(ctx, func(ctx context.Context, term *elector.Term) error {
		leader, _ := e.Leader(ctx)
		fmt.Printf("%s leads at %s, term %d\n", leader.Candidate, leader.Value, term.Token())
		return errDone // nil would resign and campaign again
	})
	fmt.Println(err)
	// Output:
	// pod-7 leads at 10.0.0.7:8080, term 1
	// the work is done
}
