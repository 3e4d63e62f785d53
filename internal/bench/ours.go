package bench

import (
	"context"
	"errors"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
)

// Ours is our client on the backends that connect opens.
func Ours(connect func(ctx context.Context, url string) (backend.Backend, error)) Contender {
	return Contender{
		Name: "holdfast", Ours: true, Can: CanWait | CanRenew | CanJoin,
		Open: func(ctx context.Context, cfg Config) (Locker, error) {
			b, err := connect(ctx, cfg.URL)
			if err != nil {
				return nil, err
			}
			l, err := newLocker(b, cfg)
			if err != nil {
				return nil, errors.Join(err, b.Close())
			}
			return l, nil
		},
	}
}

// Shared is a backend that outlives its clients.
type Shared struct{ backend.Backend }

// Close leaves the backend open.
func (Shared) Close() error { return nil }

type ourLocker struct {
	client  *holdfast.Client
	backend backend.Backend
	cfg     Config
}

func newLocker(b backend.Backend, cfg Config) (*ourLocker, error) {
	caps := b.Capabilities()
	client, err := holdfast.New(b, holdfast.Config{TTL: min(max(cfg.TTL, caps.MinTTL), caps.MaxTTL)})
	return &ourLocker{client: client, backend: b, cfg: cfg}, err
}

// Session returns another client on the same backend.
func (l *ourLocker) Session() (Locker, error) { return newLocker(Shared{l.backend}, l.cfg) }

func (l *ourLocker) Lock(ctx context.Context, name string) (Held, error) {
	lock, err := l.client.Acquire(ctx, name)
	if err != nil {
		return Held{}, err
	}
	return Held{Token: uint64(lock.Token()), Unlock: lock.Release}, nil
}

func (l *ourLocker) Close(ctx context.Context) error {
	return errors.Join(l.client.Close(ctx), l.backend.Close())
}
