package holdfast_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
)

// The context of DoAll ends when one of the locks is lost, and the others are released.
func TestDoAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, store := newFaults(t)
		c, operator := newClient(t, f, holdfast.Config{}), newClient(t, openStore(t, store), holdfast.Config{})
		err := c.DoAll(t.Context(), []string{"b", "a", "b"}, func(ctx context.Context, locks holdfast.Locks) error {
			if len(locks) != 2 || locks[0].Name() != "a" || locks[1].Name() != "b" {
				t.Errorf("holds %v", locks)
			}
			if _, err := operator.Break(t.Context(), "b", "a test"); err != nil {
				t.Fatal(err)
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
		lost, ok := errors.AsType[*holdfast.LostError](err)
		if !ok || lost.Name != "b" || lost.Cause != holdfast.CauseBroken {
			t.Errorf("%v; want the loss of b", err)
		}
		if _, err := operator.TryAcquire(t.Context(), "a"); err != nil {
			t.Errorf("the other lock is not released: %v", err)
		}
		if err := c.DoAll(t.Context(), []string{"a", "b"}, func(context.Context, holdfast.Locks) error { t.Error("ran"); return nil }, holdfast.Wait(0)); !errors.Is(err, holdfast.ErrHeld) {
			t.Errorf("one of them is held: %v", err)
		}
	})
}

// An option that the call does not take is refused, by name.
func TestMisfitOption(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	lease := holdfast.Lease{Name: "n", ID: holdfast.NewLeaseID()}
	for option, err := range map[string]error{
		"Wait":   second(c.TryAcquire(t.Context(), "n", holdfast.Wait(time.Second))),
		"Shared": second(c.Resume(t.Context(), lease, holdfast.Shared())),
		"Limit":  second(c.Resume(t.Context(), lease, holdfast.Limit(2))),
		"TTL":    second(c.Break(t.Context(), "n", "", holdfast.TTL(time.Second))),
	} {
		invalid, ok := errors.AsType[*holdfast.InvalidError](err)
		if !ok || invalid.Field != "option" || invalid.Value != option {
			t.Errorf("%s: %v", option, err)
		}
	}
	if n := f.acquires.Load(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func second[T any](_ T, err error) error { return err }

// closing counts how often it is closed.
type closing struct {
	backend.Backend
	closed int
}

func (b *closing) Close() error { b.closed++; return b.Backend.Close() }

func TestCloseBackend(t *testing.T) {
	t.Parallel()
	b := &closing{Backend: memlock.New()}
	c, err := holdfast.New(b, holdfast.Config{CloseBackend: true})
	if err != nil {
		t.Fatal(err)
	}
	mustAcquire(t, c, "n")
	if err := c.Close(t.Context()); err != nil || b.closed != 1 {
		t.Errorf("%v; the backend was closed %d times", err, b.closed)
	}
}

func TestJoinHooks(t *testing.T) {
	t.Parallel()
	var calls []string
	hooks := func(name string) *holdfast.Hooks {
		h := new(holdfast.Hooks)
		for field, f := range reflect.ValueOf(h).Elem().Fields() {
			f.Set(reflect.MakeFunc(f.Type(), func([]reflect.Value) []reflect.Value { calls = append(calls, field.Name+name); return nil }))
		}
		return h
	}
	joined := holdfast.JoinHooks(hooks("1"), hooks("2"))
	for field, f := range reflect.ValueOf(joined).Elem().Fields() {
		calls = nil
		f.Call([]reflect.Value{reflect.ValueOf(t.Context()), reflect.Zero(f.Type().In(1))})
		if want := []string{field.Name + "1", field.Name + "2"}; !slices.Equal(calls, want) {
			t.Errorf("called %q, want %q", calls, want)
		}
	}
	one := hooks("1")
	if holdfast.JoinHooks(one, nil) != one || holdfast.JoinHooks(nil, one) != one || holdfast.JoinHooks(nil, nil) != nil {
		t.Error("nil is not left out")
	}
	if part := holdfast.JoinHooks(one, &holdfast.Hooks{}); part.Lost == nil || holdfast.JoinHooks(&holdfast.Hooks{}, &holdfast.Hooks{}).Lost != nil {
		t.Error("hooks that are not set")
	}
}
