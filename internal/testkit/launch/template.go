//go:build unix

package launch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// data makes the folder "data" of a server, which a program of it creates: once on this machine for
// each version of the server, command and account. It is kept as a template in the folder of
// scripts/tool, and copied for each server.
func (o Options) data(ctx context.Context, s *Server, program string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, StartTimeout)
	defer cancel()
	argv, err := o.Program(program)
	if err != nil {
		return err
	}
	argv = slices.Concat(argv, args)
	ask := append(slices.Clone(s.command.Argv), "--version")
	version, err := exec.CommandContext(ctx, ask[0], ask[1:]...).Output() //nolint:gosec // of the list of kinds
	if err != nil {
		return fmt.Errorf("version of %s: %w", s.Name, err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("template of %s: %w", s.Name, err)
	}
	cache = filepath.Join(cache, "holdfast-tools")
	owner := syscall.Credential{}
	if s.command.Account != nil {
		owner = *s.command.Account
	}
	sum := sha256.Sum256([]byte(strings.ReplaceAll(fmt.Sprintf("%q %s %d:%d", argv, version, owner.Uid, owner.Gid), s.Dir(), "")))
	template := filepath.Join(cache, s.Name+"-data-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(template); err == nil {
		return copyFolder(ctx, template, s.Path("data"))
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // of the list of kinds
	cmd.Dir, cmd.SysProcAttr = s.Dir(), Attributes(s.command.Account)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %.500s", program, err, out)
	}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return fmt.Errorf("template of %s: %w", s.Name, err)
	}
	own, err := os.MkdirTemp(cache, s.Name+"-data-")
	if err != nil {
		return fmt.Errorf("template of %s: %w", s.Name, err)
	}
	defer func() { _ = os.RemoveAll(own) }() // what is left of it
	if err := copyFolder(ctx, s.Path("data"), filepath.Join(own, "data")); err != nil {
		return err
	}
	_ = os.Rename(filepath.Join(own, "data"), template) // another process may have made the same one
	return nil
}

// copyFolder copies a folder that is not there yet, with the owners of its files.
func copyFolder(ctx context.Context, from, to string) error {
	out, err := exec.CommandContext(ctx, "cp", "-a", from, to).CombinedOutput() //nolint:gosec // folders of servers
	if err != nil {
		return fmt.Errorf("copy %s: %w: %.500s", from, err, out)
	}
	return nil
}
