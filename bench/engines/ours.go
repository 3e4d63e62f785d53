package engines

import (
	"context"
	"errors"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/bench"
	"github.com/holdfast-io/holdfast/open"
)

// Ours is our client on the backend that the URL names.
func Ours() bench.Contender {
	return bench.Contender{
		Name: "holdfast", Kind: bench.KindOurs,
		Can:  bench.CanWait | bench.CanRenew | bench.CanShare | bench.CanPermit | bench.CanToken | bench.CanJoin,
		Open: openOurs,
	}
}

// Variant returns our client on a backend that a program makes in another way.
func Variant(name string, connect func(ctx context.Context, cfg bench.Config) (backend.Backend, error)) bench.Contender {
	c := Ours()
	c.Name, c.Kind = name, bench.KindVariant
	c.Open = func(ctx context.Context, cfg bench.Config) (bench.Locker, error) {
		b, err := connect(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return ours(b, cfg)
	}
	return c
}

func openOurs(ctx context.Context, cfg bench.Config) (bench.Locker, error) {
	b, err := open.URL(ctx, cfg.URL, open.Options{})
	if err != nil {
		return nil, err
	}
	return ours(b, cfg)
}

func ours(b backend.Backend, cfg bench.Config) (bench.Locker, error) {
	client, err := newClient(b, cfg)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return &ourLocker{client: client, backend: b, cfg: cfg}, nil
}

func newClient(b backend.Backend, cfg bench.Config) (*holdfast.Client, error) {
	caps := b.Capabilities()
	return holdfast.New(b, holdfast.Config{TTL: min(max(cfg.TTL, caps.MinTTL), caps.MaxTTL)})
}

type ourLocker struct {
	client  *holdfast.Client
	backend backend.Backend
	cfg     bench.Config
}

// Session returns another client on the same backend.
func (l *ourLocker) Session() (bench.Locker, error) {
	b := shared{l.backend}
	client, err := newClient(b, l.cfg)
	return &ourLocker{client: client, backend: b, cfg: l.cfg}, err
}

func (l *ourLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	return l.acquire(ctx, name)
}

func (l *ourLocker) LockShared(ctx context.Context, name string, limit int) (bench.Held, error) {
	if limit > 0 {
		return l.acquire(ctx, name, holdfast.Limit(limit))
	}
	return l.acquire(ctx, name, holdfast.Shared())
}

func (l *ourLocker) acquire(ctx context.Context, name string, opts ...holdfast.AcquireOption) (bench.Held, error) {
	lock, err := l.client.Acquire(ctx, name, opts...)
	if err != nil {
		return bench.Held{}, err
	}
	return bench.Held{Token: uint64(lock.Token()), Unlock: lock.Release}, nil
}

func (l *ourLocker) Close(ctx context.Context) error {
	return errors.Join(l.client.Close(ctx), l.backend.Close())
}
