package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"github.com/holdfast-io/holdfast/internal/bench"
)

// flockLoop is what flock(1) does: a file for each lock, which is opened, locked and closed. A waiter
// sleeps in the kernel, which promises no order. It has no token, and is of this host alone.
func flockLoop() bench.Contender {
	return bench.Contender{Name: "flock", Kind: bench.KindLoop, Can: bench.CanWait, Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		dir, err := besideSQLite(cfg.URL, "-flock")
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("folder of the locks: %w", err)
		}
		return flockLocker(dir), nil
	}}
}

type flockLocker string

// Lock ignores its context: a wait in flock cannot be cancelled, and ends with the holder.
func (dir flockLocker) Lock(_ context.Context, name string) (bench.Held, error) {
	f, err := os.OpenFile(filepath.Join(string(dir), url.PathEscape(name)), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return bench.Held{}, fmt.Errorf("open: %w", err)
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if err == nil {
			return bench.Held{Unlock: func(context.Context) error { return f.Close() }}, nil
		}
		if !errors.Is(err, syscall.EINTR) {
			return bench.Held{}, errors.Join(fmt.Errorf("flock: %w", err), f.Close())
		}
	}
}

func (flockLocker) Close(context.Context) error { return nil }
