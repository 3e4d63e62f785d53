package redislock_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// Keys that Holdfast did not write: an error, never a grant.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := on(t, s, cfg)
	fine := b.take("fine")
	refuses := func(name string) {
		t.Helper()
		for _, wait := range []bool{false, true} {
			for _, mode := range []backend.Mode{backend.Exclusive, backend.Shared} { // the short way and the long way
				err := b.try(name, func(r *backend.AcquireRequest) { r.Wait, r.Mode = wait, mode })
				is(t, "acquire "+name, err, redislock.ErrForeignData)
				is(t, "acquire "+name, err, backend.ErrUnavailable)
			}
		}
	}
	for name, command := range map[string][]string{
		"lock/string": {"SET", "{hf0}:l:lock/string", "x"},
		"lock/list":   {"RPUSH", "{hf0}:l:lock/list", "x"},
		"lock/hash":   {"HSET", "{hf0}:l:lock/hash", "@", "what"},
		"thin/empty":  {"ZADD", "{hf0}:t", "0", "thin/empty\n"},
		"thin/name":   {"ZADD", "{hf0}:t", "0", "thin/name\nwhat"},
		"thin/record": {"ZADD", "{hf0}:t", "0", "thin/record\nlease\nwhat"},
	} {
		s.Do(command...)
		refuses(name)
	}
	s.Do("ZADD", "{hf0}:t", "0", "no record")
	b.give(b.take("no record"))
	// One bad lock does not harm the others that are sent with it.
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			name := "lock/string"
			if i%2 == 0 {
				name = fmt.Sprint("good/", i)
			}
			if err := b.try(name); (err == nil) != (i%2 == 0) {
				t.Errorf("acquire %q: %v", name, err)
			}
		})
	}
	wg.Wait()
	for _, command := range [][]string{
		{"SET", "{hf0}:f", "12x"},
		{"SET", "{hf0}:f", ""},
		{"HSET", "{hf0}:f", "a", "1"},
		{"SET", "{hf0}:t", "what"},
		{"SET", "{hf0}:x", "x"},
		{"HSET", "{hf0}:m", "a", "b"},
	} {
		s.Do("RENAME", command[1], "aside")
		s.Do(command...)
		refuses("any")
		if command[1] == "{hf0}:t" {
			is(t, "release", b.drop(fine), redislock.ErrForeignData)
		}
		s.Do("RENAME", "aside", command[1])
	}
	b.give(fine)
}

// Data in another format is refused, and the error says so.
func TestAnotherFormat(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := on(t, s, cfg)
	marker := fmt.Sprint(s.Do("GET", "{hf0}:m"))
	f := strings.Fields(marker)
	f[0] = "hf2"
	earlier := strings.Join(slices.Delete(f, 6, 7), " ") // see lua/marker.lua
	for _, other := range []string{earlier, strings.Replace(marker, "hf6 1 ", "hf7 1 ", 1)} {
		s.Do("SET", "{hf0}:m", other)
		if err := b.try("one"); !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), "format") {
			t.Errorf("data in format %s: %v", other, err)
		}
	}
}

// One lock that cannot be read does not stop the sweep, and so every client: what else the
// dead session had goes to its waiters.
func TestForeignKeyOfTheDead(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	b := on(t, s, cfg)
	const ttl = 20 * time.Second // the locks are taken and refused in this time
	dead := mortal(t, b.Backend, ttl)
	for _, name := range []string{"bad", "one"} { // Redis keeps the order of the first two in their session
		dead.take(name)
		is(t, "acquire", b.try(name), backend.ErrHeld) // the refusal inflates it
	}
	dead.take("two", timed(ttl))
	dead.take("worse", timed(ttl))
	s.Do("HSET", "{hf0}:l:bad", "@", "what")
	s.Do("ZADD", "{hf0}:t", "0", "worse\n!") // before the record that is there
	for _, name := range []string{"one", "two"} {
		b.take(name, waits)
	}
	for _, name := range []string{"bad", "worse"} {
		is(t, "acquire "+name, b.try(name), redislock.ErrForeignData)
	}
	if err := b.EndSession(t.Context(), b.id); err != nil {
		t.Error(err)
	}
}

// The greatest token cannot be read as a lock is handed over: the lock is free nevertheless,
// and goes to the next waiter when the token can be read again.
func TestForeignTokenAtAHandOver(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := on(t, s, cfg)
	held, a := b.take("one"), b.asks("one", 1)
	s.Do("RENAME", "{hf0}:f", "aside")
	s.Do("SET", "{hf0}:f", "what")
	is(t, "release", b.drop(held), redislock.ErrForeignData)
	s.Do("RENAME", "aside", "{hf0}:f")
	b.exec("check", string(b.id), "one", string(a.Lease))
	b.give(a.granted(t))
}
