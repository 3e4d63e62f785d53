package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/sqlitelock"
	"github.com/holdfast-io/holdfast/internal/ownfile"
)

// store opens the store of the server: the one that --backend names, or the file in a folder, which it returns.
func (a *app) store(ctx context.Context, folder string) (backend.Backend, string, error) {
	if a.backend == "" {
		return a.ownStore(ctx, folder)
	}
	if folder != "" {
		return nil, "", usageError("backend", "cannot be combined with --data-dir, the folder of the locks of a server without --backend")
	}
	b, err := a.open(ctx)
	if err != nil {
		return nil, "", err
	}
	if caps := b.Capabilities(); !caps.Timed {
		err := usageError("backend", "a lease of %s ends with the session of its client, and one over HTTP has to outlive that: use etcd://, redis://, redlock://, postgres://, mysql:// or sqlite://", caps.Name)
		return nil, "", errors.Join(err, b.Close())
	}
	if b.Capabilities().Name == "memory" {
		a.warn("the locks are in this process: a restart forgets all leases, and grants held locks again with the same tokens")
	}
	return b, "", nil
}

const (
	lockFile    = "locks.db"
	privateMode = 0o700
)

func (a *app) ownStore(ctx context.Context, folder string) (backend.Backend, string, error) {
	var err error
	if folder == "" {
		folder, err = stateDir("serve")
	} else {
		folder, err = filepath.Abs(folder)
	}
	if err != nil {
		return nil, "", err
	}
	if err := claimFolder(folder); err != nil {
		return nil, "", configError("data-dir", err)
	}
	b, err := sqlitelock.Open(ctx, filepath.Join(folder, lockFile), sqlitelock.Config{Logger: a.logger()})
	if err != nil {
		return nil, "", fmt.Errorf("open the locks in %s: %w", folder, err)
	}
	return b, folder, nil
}

// claimFolder creates the folder, or removes the permissions of other users from an existing one. It refuses a folder of
// another user or program, such as /tmp.
func claimFolder(dir string) error {
	if err := os.MkdirAll(dir, privateMode); err != nil {
		return err
	}
	if err := ownfile.Check(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	others := false
	for _, e := range entries {
		switch name := e.Name(); {
		case name == "etcd":
			return fmt.Errorf("%s: has the locks of an earlier version, which ran an etcd and whose data this version cannot read; name another folder, or delete this one", dir)
		case strings.HasPrefix(name, lockFile):
			if err := ownfile.Check(filepath.Join(dir, name)); err != nil {
				return err
			}
		default:
			others = others || name != "lost+found" // of a new file system
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, lockFile)); err != nil && others {
		return fmt.Errorf("%s: must be empty, or have the locks of a server in it", dir)
	}
	return os.Chmod(dir, privateMode)
}

// stateDir returns a folder of the user for data that has to survive.
func stateDir(name string) (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "holdfast", name), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find a folder for the locks: %w", err)
	}
	return filepath.Join(home, ".local", "state", "holdfast", name), nil
}
