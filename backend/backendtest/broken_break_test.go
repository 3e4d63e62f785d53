package backendtest_test

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

func telling() []broken {
	var told sync.Map
	seventh := every(7)
	return []broken{
		{"breaks without telling by push", []string{"C10/the-victim-is-told"}, hooks{open: func(ctx context.Context, b backend.Backend, r backend.SessionRequest) error {
			r.Lost = nil
			return b.OpenSession(ctx, r)
		}}},
		{"breaks without telling by renewal", []string{"C10"}, hooks{renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
			res, err := b.Renew(ctx, r)
			res.Lost = nil
			return res, err
		}}},
		{"reports the loss of a lease only once, though it grants it again", []string{"C10"}, hooks{renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
			res, err := b.Renew(ctx, r)
			res.Lost = slices.DeleteFunc(res.Lost, func(x backend.Loss) bool {
				_, again := told.LoadOrStore(x.Lease, true)
				return again
			})
			return res, err
		}}},
		{"does not tell that a session is lost", []string{"C5", "C10/a-lost-session-is-told"}, hooks{renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
			res, err := b.Renew(ctx, r)
			res.SessionLost = false
			return res, err
		}}},
		{"loses every seventh event", []string{"C10"}, hooks{watch: func(ctx context.Context, b backend.Backend, r backend.WatchRequest, deliver func(backend.Event)) error {
			return b.Watch(ctx, r, func(e backend.Event) {
				if !seventh() {
					deliver(e)
				}
			})
		}}},
	}
}

// partOfMany is more than any other case breaks at a time.
const partOfMany = 24

// breaksMany calls then after a break of more than partOfMany.
func breaksMany(then func(context.Context, backend.Backend, backend.BreakRequest, *backend.BreakResult) error) hooks {
	return hooks{breaks: func(ctx context.Context, b backend.Backend, r backend.BreakRequest) (backend.BreakResult, error) {
		res, err := b.Break(ctx, r)
		if err == nil && len(res.Broken) > partOfMany {
			err = then(ctx, b, r, &res)
		}
		return res, err
	}}
}

func breakingMany() []broken {
	of := []string{"C10/a-break-of-many-holders"}
	return []broken{
		{"breaks all though one lease was named", []string{"C10/one-of-the-holders-is-broken"}, hooks{breaks: func(ctx context.Context, b backend.Backend, r backend.BreakRequest) (backend.BreakResult, error) {
			r.Lease = ""
			return b.Break(ctx, r)
		}}},
		{"looks who has the lock before it draws the token of a break", []string{"C10"}, hooks{breaks: func(ctx context.Context, b backend.Backend, r backend.BreakRequest) (backend.BreakResult, error) {
			if before, err := b.Inspect(ctx, r.Name); err != nil || len(before.Holders) > 0 {
				return b.Break(ctx, r)
			}
			time.Sleep(time.Millisecond)
			if now, err := b.Inspect(ctx, r.Name); err == nil && len(now.Holders) > 0 {
				return backend.BreakResult{Token: now.Token + 1}, nil
			}
			return b.Break(ctx, r)
		}}},
		{"breaks many in parts, and takes the lock from those whom the first part let in", of, breaksMany(func(ctx context.Context, b backend.Backend, r backend.BreakRequest, _ *backend.BreakResult) error {
			_, err := b.Break(ctx, r)
			return err
		})},
		{"names only the last part of many that it broke", of, breaksMany(func(_ context.Context, _ backend.Backend, _ backend.BreakRequest, res *backend.BreakResult) error {
			res.Broken = res.Broken[partOfMany:]
			return nil
		})},
		{"names one of many twice", of, breaksMany(func(_ context.Context, _ backend.Backend, _ backend.BreakRequest, res *backend.BreakResult) error {
			res.Broken = append(res.Broken, res.Broken[0])
			return nil
		})},
		{"fails after a part of many, and says that nothing was done", of, breaksMany(func(context.Context, backend.Backend, backend.BreakRequest, *backend.BreakResult) error {
			return errAway
		})},
	}
}
