package shim_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/shim"
)

// writeEnv names the file to which this program, started by TestDisk, writes.
const writeEnv = "HOLDFAST_SHIM_TEST_WRITE"

func TestMain(m *testing.M) {
	if path := os.Getenv(writeEnv); path != "" {
		if err := writeAndDie(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// writeAndDie writes "synced", syncs, writes "lost" behind it, as the servers do with a file of
// this name, and kills its process.
func writeAndDie(path string) error {
	flags := os.O_CREATE | os.O_WRONLY
	if filepath.Base(path) == "append.aof" {
		flags |= os.O_APPEND
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return err
	}
	write := f.Write
	switch filepath.Ext(path) {
	case ".wal":
		err = f.Truncate(16)
	case ".db":
		at := int64(0)
		write = func(b []byte) (int, error) { at += int64(len(b)); return f.WriteAt(b, at-int64(len(b))) }
	}
	_, err2 := write([]byte("synced"))
	err3 := f.Sync()
	_, err4 := write([]byte("lost"))
	if err := errors.Join(err, err2, err3, err4); err != nil {
		return err
	}
	return syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

// What a program writes to its log after the last sync is lost when it is killed. Other files are
// on the machine's disk.
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
	for name, want := range map[string]string{
		"append.aof": "synced", "1.aof": "synced", "0.wal": "synced\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "raft.db": "synced", "other": "syncedlost",
	} {
		disk := launcher.Disk(func(err error) { t.Error(err) })
		path := filepath.Join(dir, name)
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), writeEnv+"="+path)
		said := new(bytes.Buffer)
		cmd.Stderr = said
		attend, err := disk.Launch(cmd)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		if err := cmd.Run(); err == nil || said.Len() > 0 {
			t.Errorf("%s: %v, %s", name, err, said)
		}
		close(ended)
		attend(ended)
		if err := disk.Settle(); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != want || disk.Syncs() > 0 != (name != "other") {
			t.Errorf("%s has %q, %v, after %d syncs", name, text, err, disk.Syncs())
		}
	}
}
