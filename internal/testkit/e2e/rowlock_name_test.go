package e2e_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/rowlock"
)

// One transaction at a time has a name, and another name is free. It is free again when the transaction
// ends, however that is.
func testName(e rowEngine) {
	if e.dialect != rowlock.Postgres {
		return
	}
	ctx := e.t.Context()
	first, second := e.tx(), e.tx()
	if err := rowlock.Name(ctx, first.Tx, "order:7"); err != nil {
		e.t.Fatal(err)
	}
	for range 2 { // and the transaction continues
		err := rowlock.TryName(ctx, second.Tx, "order:7")
		if refused, ok := errors.AsType[*rowlock.LockError](err); !ok || !errors.Is(err, rowlock.ErrBusy) || refused.Over || refused.Lock != "order:7" {
			e.t.Fatalf("a name that another transaction has: %v", err)
		}
	}
	if err := rowlock.TryName(ctx, second.Tx, "order:8"); err != nil {
		e.t.Errorf("another name: %v", err)
	}
	if err := rowlock.Name(ctx, first.Tx, "order:7"); err != nil {
		e.t.Errorf("the same transaction again: %v", err)
	}
	got := make(chan error, 1)
	go func() { got <- rowlock.Name(ctx, second.Tx, "order:7") }()
	if err := first.rollback(ctx); err != nil {
		e.t.Fatal(err)
	}
	if err := soon(e.t, got); err != nil {
		e.t.Errorf("after the other transaction: %v", err)
	}
	if err := second.commit(ctx); err != nil {
		e.t.Error(err)
	}
	third := e.tx()
	if err := rowlock.TryName(ctx, third.Tx, "order:7"); err != nil {
		e.t.Errorf("after the commit: %v", err)
	}
	// lock_timeout of the connection bounds the wait, and the error says so.
	fourth := e.tx()
	if err := fourth.exec(ctx, "SET LOCAL lock_timeout = '50ms'"); err != nil {
		e.t.Fatal(err)
	}
	err := rowlock.Name(ctx, fourth.Tx, "order:7")
	if refused, ok := errors.AsType[*rowlock.LockError](err); !ok || !errors.Is(err, rowlock.ErrBusy) || !refused.Over {
		e.t.Errorf("after lock_timeout: %v", err)
	}
}

// A bad name is refused before anything is sent: there is no transaction here.
func TestBadName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", strings.Repeat("n", 513), "\xff"} {
		for _, call := range []func(context.Context, rowlock.Tx, string) error{rowlock.Name, rowlock.TryName} {
			err := call(t.Context(), rowlock.Tx{}, name)
			if invalid, ok := errors.AsType[*fence.InvalidError](err); !ok || invalid.Field != "name" {
				t.Errorf("%q: %v", name, err)
			}
		}
	}
}
