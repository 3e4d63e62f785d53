package shim_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/shim"
)

// A write is lost if the program ends before it syncs the log, and kept if it has synced; other
// files are on the machine's disk.
func TestDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	launcher, err := shim.NewLauncher(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := launcher.Try(t.Context(), dir, nil); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name, sync string
		size       int64
	}{{"a.aof", "conv=notrunc", 0}, {"b.aof", "conv=fsync", 8}, {"c", "conv=notrunc", 8}} {
		disk := launcher.Disk(func(err error) { t.Error(err) })
		path := filepath.Join(dir, x.name)
		cmd := exec.CommandContext(t.Context(), "dd", "if=/dev/zero", "of="+path, "bs=8", "count=1", x.sync)
		attend, err := disk.Launch(cmd)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		if err := cmd.Run(); err != nil {
			t.Error(err)
		}
		close(ended)
		attend(ended)
		if err := disk.Settle(); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() != x.size || disk.Syncs() > 0 != (x.size > 0 && x.name != "c") {
			t.Errorf("%s: %+v, %v, %d syncs", x.name, info, err, disk.Syncs())
		}
	}
}

// A command that cannot be started leaves no goroutine, and the disk continues.
func TestDiskWithoutAProgram(t *testing.T) {
	t.Parallel()
	launcher, err := shim.NewLauncher(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	disk := launcher.Disk(func(err error) { t.Error(err) })
	cmd := exec.CommandContext(t.Context(), "true")
	cmd.Dir = filepath.Join(t.TempDir(), "none")
	attend, err := disk.Launch(cmd)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	if cmd.Start() == nil {
		t.Error("it was started in a folder that is not there")
	}
	close(ended)
	attend(ended)
	if err := disk.Settle(); err != nil {
		t.Error(err)
	}
}

func TestClock(t *testing.T) {
	t.Parallel()
	clocks, err := shim.NewClocks(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := clocks.Try(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// What the machine cannot do is distinguished from a call that was interrupted.
func TestUnsupported(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	<-ctx.Done()
	if _, err := shim.NewLauncher(ctx, t.TempDir()); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, shim.ErrUnsupported) {
		t.Errorf("interrupted: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := shim.NewLauncher(t.Context(), t.TempDir()); !errors.Is(err, shim.ErrUnsupported) {
		t.Errorf("without gcc: %v", err)
	}
	if _, err := shim.NewClocks(t.Context(), t.TempDir()); !errors.Is(err, shim.ErrUnsupported) {
		t.Errorf("without gcc: %v", err)
	}
}
