package recipes

import (
	"context"
	"errors"

	"github.com/holdfast-io/holdfast"
)

// Cache is a shared cache. It keeps values for some time after they are stale.
type Cache interface {
	// Get returns a value, and whether it is fresh. A missing value is "".
	Get(ctx context.Context, key string) (string, bool, error)
	// Put stores a value, which is fresh then.
	Put(ctx context.Context, key, value string) error
}

// Load returns a value from the cache, and loads it when it is stale: once, however many
// callers on however many machines want it. A caller that finds it being loaded gets the stale
// value immediately; if there is none, it waits for the loader and gets the loaded value.
func Load(ctx context.Context, locks *holdfast.Client, cache Cache, key string, load func(context.Context) (string, error)) (string, error) {
	stale, fresh, err := cache.Get(ctx, key)
	if err != nil || fresh {
		return stale, err
	}
	var options []holdfast.Option
	if stale != "" {
		options = append(options, holdfast.Wait(0))
	}
	value, tried := "", false
	err = locks.Do(ctx, "load/"+key, func(ctx context.Context, _ *holdfast.Lock) error {
		tried = true
		var err error
		value, err = loadOnce(ctx, cache, key, load)
		return err
	}, options...)
	if !tried && stale != "" && (errors.Is(err, holdfast.ErrHeld) || errors.Is(err, holdfast.ErrUnavailable)) {
		return stale, nil // another caller loads it, or the store is unavailable
	}
	return value, err
}

func loadOnce(ctx context.Context, cache Cache, key string, load func(context.Context) (string, error)) (string, error) {
	value, fresh, err := cache.Get(ctx, key) // an earlier holder may have loaded it
	if err != nil || fresh {
		return value, err
	}
	if value, err = load(ctx); err != nil {
		return "", err
	}
	return value, cache.Put(ctx, key, value)
}
