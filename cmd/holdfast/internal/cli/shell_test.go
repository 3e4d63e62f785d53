package cli_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// shells are those in which what acquire prints with --export is evaluated; zsh is told to split words, as the others do.
func shells() map[string][]string {
	return map[string][]string{"dash": {"dash"}, "bash": {"bash", "--norc", "--noprofile"}, "zsh": {"zsh", "-f", "-y"}}
}

// A shell does not continue without the lock: when the lock is held, when the store is down, for a wrong flag, and when
// holdfast was killed before it could print anything.
func TestShellStopsWithoutTheLock(t *testing.T) {
	t.Parallel()
	held := sqliteURL(t)
	run(t, command(t, held, "acquire", "--ttl", "1h", "n"))
	killed := filepath.Join(t.TempDir(), "holdfast")
	if err := os.WriteFile(killed, []byte("#!/bin/sh\nkill -KILL $$\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	const bare, checked = `eval "$("$H" acquire --export $F n)"`, `lease=$("$H" acquire --export $F n) || exit; eval "$lease"`
	for _, c := range []struct {
		name, program, url, flags, script string
		status                            int
	}{
		{"held", binary, held, "--try", bare, 75},
		{"away", binary, fmt.Sprintf("redis://127.0.0.1:%d", testserver.FreePort(t)), "--try", bare, 74},
		{"flag", binary, held, "--tyr", bare, 64},
		{"value", binary, held, "--ttl 0s", bare, 64},
		{"held-and-checked", binary, held, "--try", checked, 75},
		{"killed-and-checked", killed, held, "--try", checked, 128 + 9},
	} {
		for name, shell := range shells() {
			for _, set := range []string{"", "set -e; "} {
				t.Run(c.name+"/"+name+"/"+set, func(t *testing.T) {
					t.Parallel()
					cmd := exec.CommandContext(t.Context(), shell[0], append(shell[1:], "-c", set+"take() { "+c.script+"; }; take; echo went on")...)
					cmd.Env = append(os.Environ(), "HOLDFAST_BACKEND="+c.url, "H="+c.program, "F="+c.flags)
					if got := run(t, cmd); got.status != c.status || got.out != "" {
						t.Errorf("%+v, want status %d and no output", got, c.status)
					}
				})
			}
		}
	}
}

// In an interactive shell the rest of the line is dropped, and the shell stays.
func TestInteractiveShellStaysWithoutTheLock(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	run(t, command(t, url, "acquire", "--ttl", "1h", "n"))
	for name, shell := range shells() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := openTerminal(t, url, append(shell, "-i")...)
			x.types(`take() { eval "$(holdfast acquire --try --export n)"; }; take; echo "went on"` + "\n")
			x.sees("holdfast: acquire")
			x.sees("> ")
			x.types("echo status-$?\n")
			x.sees("status-130")
		})
	}
}
