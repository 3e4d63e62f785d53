package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// ErrUnsupported matches the error of a machine that cannot run a shim: it has no gcc, is not
// Linux, its kernel is too old, or it does not let one process inspect another.
var ErrUnsupported = errors.New("not possible on this machine")

// waitTimeout bounds the wait for a process that is about to end.
const waitTimeout = 20 * time.Second

// build compiles a source into a folder, which must exist, and returns the path of the result.
// flags are added to those of gcc. Servers that run as another user can read the result.
func build(ctx context.Context, dir, name string, source []byte, flags ...string) (string, error) {
	if runtime.GOOS != "linux" {
		return "", fmt.Errorf("%w: it is not Linux", ErrUnsupported)
	}
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return "", fmt.Errorf("%w: gcc is not installed", ErrUnsupported)
	}
	path, built := filepath.Join(dir, name+".c"), filepath.Join(dir, name)
	if err := os.WriteFile(path, source, 0o600); err != nil {
		return "", fmt.Errorf("shim: %w", err)
	}
	cmd := exec.CommandContext(ctx, gcc, append([]string{"-O2", "-Wall", "-Werror", "-o", built, path}, flags...)...) //nolint:gosec // our own source
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "TMPDIR="+dir)                                                       // where it leaves files when it is killed
	isolate(cmd)
	if out, err := cmd.CombinedOutput(); ctx.Err() != nil {
		return "", fmt.Errorf("shim: gcc: %w", context.Cause(ctx))
	} else if err != nil {
		return "", fmt.Errorf("%w: gcc: %w: %.500s", ErrUnsupported, err, out)
	}
	return built, readable(dir, built)
}

// readable makes files readable and executable for servers that run as another user.
func readable(paths ...string) error {
	for _, path := range paths {
		if err := os.Chmod(path, 0o755); err != nil { //nolint:gosec // nothing in it is secret
			return fmt.Errorf("shim: %w", err)
		}
	}
	return nil
}
