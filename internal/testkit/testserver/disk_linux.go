package testserver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// Disk is a small file system in memory, to be filled. The methods fail the test when they
// fail.
type Disk struct {
	t      testing.TB
	folder string
	size   int64
	files  int
}

// SmallDisk moves a folder to a disk of its own, which has room for that many more bytes. No
// server may have it open. The disk is removed with the test, after everything that the test
// starts from now on. Mounting it requires root.
func SmallDisk(t testing.TB, folder string, room int64) *Disk {
	t.Helper()
	d := &Disk{t: t, folder: folder, size: room + sizeOf(t, folder)}
	was := folder + ".moved"
	if err := errors.Join(os.Rename(folder, was), os.Mkdir(folder, 0o700)); err != nil {
		t.Fatalf("testserver: a small disk: %v", err)
	}
	d.mount(0)
	t.Cleanup(func() {
		if err := syscall.Unmount(folder, syscall.MNT_DETACH); err != nil {
			t.Errorf("testserver: unmount a small disk: %v", err)
		}
	})
	//nolint:gosec,noctx // the folders are the test's
	if out, err := exec.Command("cp", "-a", was+"/.", folder).CombinedOutput(); err != nil {
		t.Fatalf("testserver: move to a small disk: %v: %s", err, out)
	}
	if err := os.RemoveAll(was); err != nil {
		t.Fatalf("testserver: a small disk: %v", err)
	}
	return d
}

func (d *Disk) mount(how uintptr) {
	d.t.Helper()
	if err := syscall.Mount("tmpfs", d.folder, "tmpfs", how, fmt.Sprintf("size=%d", d.size)); err != nil {
		d.t.Fatalf("testserver: mount a small disk, which takes root: %v", err)
	}
}

// sizeOf is the space that a folder takes.
func sizeOf(t testing.TB, folder string) int64 {
	t.Helper()
	const block, page = 512, 4096
	var sum int64
	err := filepath.WalkDir(folder, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err //nolint:wrapcheck // see below
		}
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			sum += s.Blocks*block + page
		}
		return nil
	})
	if err != nil {
		t.Fatalf("testserver: size of %s: %v", folder, err)
	}
	return sum
}

// Fill takes all the space that is left.
func (d *Disk) Fill() {
	d.t.Helper()
	for size := 1 << 20; size >= 1<<12; size /= 16 {
		d.files++
		err := fillFile(d.filler(d.files), make([]byte, size))
		if !errors.Is(err, syscall.ENOSPC) {
			d.t.Fatalf("testserver: fill a disk: %v", err)
		}
	}
}

func (d *Disk) filler(n int) string { return filepath.Join(d.folder, fmt.Sprintf("filler-%d", n)) }

// fillFile writes until there is an error.
func fillFile(path string, piece []byte) error {
	f, err := os.Create(path) //nolint:gosec // on the disk of a test
	if err != nil {
		return err //nolint:wrapcheck // Fill does
	}
	for err == nil {
		_, err = f.Write(piece)
	}
	return errors.Join(err, f.Close())
}

// Free releases the space that Fill took, and more: what is on the disk may have grown.
func (d *Disk) Free() {
	d.t.Helper()
	const more = 256 << 20
	d.size += more
	d.mount(syscall.MS_REMOUNT)
	for ; d.files > 0; d.files-- {
		if err := os.Remove(d.filler(d.files)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.t.Fatalf("testserver: free a disk: %v", err)
		}
	}
}
