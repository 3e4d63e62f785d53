package holdfast_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
)

// Every exported method refuses nil in place of a context, a function, an option or a list, with an
// error that names it, and changes nothing.
func TestNilArguments(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	lock := mustAcquire(t, c, "held")
	valid := map[reflect.Type]any{
		reflect.TypeFor[holdfast.Lease]():       lock.Lease(),
		reflect.TypeFor[holdfast.LeaseID]():     lock.Lease().ID,
		reflect.TypeFor[holdfast.ListOptions](): holdfast.ListOptions{},
		reflect.TypeFor[[]string]():             []string{"n"},
		reflect.TypeFor[string]():               "n",
		reflect.TypeFor[time.Duration]():        time.Minute,
	}
	tried := 0
	for _, on := range []any{c, lock, holdfast.Locks{lock}} {
		v := reflect.ValueOf(on)
		for m, method := range v.Methods() {
			if m.Name == "SetAsleep" {
				continue // of the tests
			}
			typ := method.Type()
			for bad := range typ.NumIn() {
				if !takesNil(typ, bad) {
					continue
				}
				tried++
				var args []reflect.Value
				for i := range typ.NumIn() {
					in := typ.In(i)
					switch {
					case i == bad && typ.IsVariadic() && i == typ.NumIn()-1:
						args = append(args, reflect.Zero(in.Elem()))
					case i == bad:
						args = append(args, reflect.Zero(in))
					case typ.IsVariadic() && i == typ.NumIn()-1:
					case in.Kind() == reflect.Func:
						args = append(args, reflect.MakeFunc(in, func([]reflect.Value) []reflect.Value {
							t.Errorf("%s: its function was called", m.Name)
							return zeros(in)
						}))
					case in.Kind() == reflect.Interface:
						args = append(args, reflect.ValueOf(t.Context()))
					default:
						if valid[in] == nil {
							t.Fatalf("%s takes a %s", m.Name, in)
						}
						args = append(args, reflect.ValueOf(valid[in]))
					}
				}
				var invalid *holdfast.InvalidError
				if err := failure(method.Call(args)); !errors.As(err, &invalid) {
					t.Errorf("%T.%s, argument %d is nil: %v", on, m.Name, bad+1, err)
				}
			}
		}
	}
	const least = 20
	if tried < least {
		t.Errorf("only %d arguments were nil", tried)
	}
	if err := lock.Err(); err != nil {
		t.Errorf("the lock is gone: %v", err)
	}
	if n := f.acquires.Load(); n != 1 {
		t.Errorf("%d acquires were sent", n)
	}
}

func takesNil(f reflect.Type, i int) bool {
	in := f.In(i)
	if f.IsVariadic() && i == f.NumIn()-1 {
		in = in.Elem()
	}
	switch in.Kind() { //nolint:exhaustive // the others cannot be nil
	case reflect.Interface, reflect.Func, reflect.Slice, reflect.Pointer:
		return true
	default:
		return false
	}
}

func zeros(f reflect.Type) []reflect.Value {
	var out []reflect.Value
	for result := range f.Outs() {
		out = append(out, reflect.Zero(result))
	}
	return out
}

// failure returns the error among the results of a call. An iterator yields it.
func failure(results []reflect.Value) error {
	for _, r := range results {
		if r.Kind() == reflect.Func {
			for _, err := range r.Seq2() {
				if err, ok := reflect.TypeAssert[error](err); ok {
					return err
				}
			}
			return nil
		}
		if err, ok := reflect.TypeAssert[error](r); ok {
			return err
		}
	}
	return nil
}
