package goredis_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/backend/redislock/goredis"
)

// A program passes the client that it has already. (There is no output to compare: the example is
// compiled, and the tests run the same against a real server.)
func Example() { //nolint:testableexamples // it needs a server at a known place
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"})
	defer client.Close()
	b, err := goredis.New(client, redislock.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	locks, err := holdfast.New(b, holdfast.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close(ctx)

	err = locks.Do(ctx, "order:123", func(ctx context.Context, lock *holdfast.Lock) error {
		fmt.Println("token", lock.Token())
		return ctx.Err()
	})
	fmt.Println(err)
}

// A Ring has many servers, and none of them has all the locks.
func ExampleNew() {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:6379"}})
	defer ring.Close()
	_, err := goredis.New(ring, redislock.Config{})
	if invalid, ok := errors.AsType[*backend.InvalidError](err); ok {
		fmt.Println(invalid.Field, invalid.Value)
	}
	// Output: client a *redis.Ring
}
