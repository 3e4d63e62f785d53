package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/backend/sqlitelock"
	"github.com/holdfast-io/holdfast/open"
)

// url returns the URL of the backend: from the flag, the environment, or the file of this user.
func (a *app) url() (string, error) {
	named, err := a.named()
	if err != nil || named != "" {
		return withToken(named), err
	}
	path, err := sqlitelock.DefaultPath()
	if err != nil {
		return "", fmt.Errorf("find the file of this user (or name a backend: --backend, HOLDFAST_BACKEND): %w", err)
	}
	return "sqlite://" + path, nil
}

// named returns the URL that the flag or the environment names; "" if neither does.
func (a *app) named() (string, error) {
	if a.backend != "" {
		return a.backend, nil
	}
	return backendOfEnvironment()
}

// tellScope reports on a terminal that no other user has these locks, where no backend is named.
func (a *app) tellScope() {
	named, err := a.named()
	path, missing := sqlitelock.DefaultPath()
	if err != nil || named != "" || missing != nil || !a.isTerminal(a.stderr) {
		return
	}
	name := strconv.Itoa(os.Geteuid())
	if u, err := user.LookupId(name); err == nil {
		name = u.Username
	}
	a.warn("locks of user %s on this host, %s", name, path)
}

// withToken adds the file that HOLDFAST_TOKEN_FILE names to the URL of Holdfast servers that has no token.
func withToken(raw string) string {
	return remotelock.WithTokenFile(raw, os.Getenv("HOLDFAST_TOKEN_FILE"))
}

func (a *app) open(ctx context.Context) (backend.Backend, error) {
	url, err := a.url()
	if err != nil {
		return nil, err
	}
	const long = 10 * time.Second
	ctx, cancel := backend.WithTimeout(ctx, long)
	defer cancel()
	return open.URL(ctx, url, open.Options{Logger: a.logger()})
}

// openWithin opens the backend, and retries while it is unavailable and wait has not elapsed.
// It warns of the first failure. It returns how much of the wait is left.
func (a *app) openWithin(ctx context.Context, wait time.Duration) (backend.Backend, time.Duration, error) {
	const firstPause, longestPause = 50 * time.Millisecond, time.Second
	began := time.Now()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		within, cancel := context.WithTimeout(ctx, max(wait-time.Since(began), time.Second))
		b, err := a.open(within)
		cancel()
		left := wait - time.Since(began)
		switch {
		case err == nil && pause == firstPause:
			return b, wait, nil
		case err == nil:
			return b, max(left, 0), nil
		case ctx.Err() != nil:
			return nil, 0, context.Cause(ctx)
		case left <= 0, errors.Is(err, backend.ErrRefused), !errors.Is(err, backend.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded):
			return nil, 0, err
		case pause == firstPause:
			a.warn("%v; retrying until --wait has elapsed", err)
		}
		select {
		case <-time.After(min(pause, left)):
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
	}
}

// client opens the backend and returns a client. The returned function closes both.
func (a *app) client(ctx context.Context, cfg holdfast.Config) (*holdfast.Client, func(), error) {
	b, err := a.open(ctx)
	return a.clientOf(ctx, b, err, cfg)
}

// clientFor is client for a command that takes a lock. With --wait, the store may be
// unavailable for that long, for example while it restarts. The rest of the wait is for the
// lock.
func (a *app) clientFor(ctx context.Context, o *lockOptions, cfg holdfast.Config) (*holdfast.Client, func(), error) {
	if o.try || !o.waitGiven || o.wait <= 0 {
		return a.client(ctx, cfg)
	}
	b, left, err := a.openWithin(ctx, o.wait)
	o.wait = left
	return a.clientOf(ctx, b, err, cfg)
}

// clientOf returns a client of the backend, unless err says that there is no backend.
func (a *app) clientOf(ctx context.Context, b backend.Backend, err error, cfg holdfast.Config) (*holdfast.Client, func(), error) {
	if err != nil {
		return nil, nil, err
	}
	cfg.Logger = a.logger()
	c, err := holdfast.New(b, cfg)
	if err != nil {
		return nil, nil, errors.Join(err, b.Close())
	}
	return c, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if err := errors.Join(c.Close(ctx), b.Close()); err != nil && a.verbose {
			a.warn("%v", err)
		}
	}, nil
}
