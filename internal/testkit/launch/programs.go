//go:build unix

package launch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Options say how servers are started.
type Options struct {
	// Dir is their folder, which exists. Required.
	Dir string
	// Members is the number of servers of a kind that can have several. Default: 1.
	Members int
	// Programs are commands, by the names of the programs that they replace, such as "etcd". A
	// program that is not there is looked up on the machine. Optional.
	Programs map[string][]string
	// Args are added to the command line of each server. Of two for the same setting the last one
	// counts. Optional.
	Args []string
}

// server returns a server of a program, in a folder of its own, on a free port. account is the user
// that it runs as if this process is root's, which some servers refuse; empty: any.
func (o Options) server(program, folder, account string) (*Server, error) {
	argv, err := o.Program(program)
	if err != nil {
		return nil, err
	}
	s := &Server{Name: program, command: Command{Argv: argv, Dir: filepath.Join(o.Dir, folder)}}
	if s.command.Account, err = Account(account); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.command.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder of %s: %w", program, err)
	}
	if err := errors.Join(Chown(o.Dir, s.command.Account), Chown(s.command.Dir, s.command.Account)); err != nil {
		return nil, fmt.Errorf("folder of %s: %w", program, err)
	}
	s.addr, err = FreeAddr()
	return s, err
}

// client runs the command-line client of a server to its end, and returns what it prints.
func client(ctx context.Context, program string, args ...string) (string, error) {
	argv, err := Options{}.Program(program)
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], args...) //nolint:gosec // of the list of kinds
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %.500s", program, err, stderr.String())
	}
	return strings.TrimSpace(stdout.String()), nil
}

// Program returns the command of a program: of Programs, where Debian puts programs that only its
// own scripts are meant to call, or in $PATH. Errors: it is not installed.
func (o Options) Program(name string) ([]string, error) {
	if argv := o.Programs[name]; len(argv) > 0 {
		return argv, nil
	}
	// PostgreSQL's first: what Debian has of it in $PATH is a script that takes longer than a query.
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); len(found) > 0 {
		return []string{slices.Max(found)}, nil
	}
	path, err := exec.LookPath(name)
	if err == nil {
		return []string{path}, nil
	}
	if found, _ := filepath.Glob("/usr/sbin/" + name); len(found) > 0 {
		return found, nil
	}
	return nil, fmt.Errorf("%s is not installed: %w", name, err)
}

// Built returns the path of a program that this repository builds: those of scripts/tool, and
// "holdfast". It is built if it was not before, which takes minutes. flags are of the go command, for
// "holdfast". Errors: ErrNoSource outside the repository; those of the build.
func Built(ctx context.Context, name string, flags ...string) (string, error) {
	root, err := Repository()
	if err != nil {
		return "", err
	}
	if name == "holdfast" {
		return buildOurs(ctx, filepath.Join(root, "cmd", "holdfast"), flags)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "scripts", "tool"), name) //nolint:gosec // a script of the repository
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// buildOurs returns the path of the program of a folder in the build cache, where it stays: "go run"
// puts it there.
func buildOurs(ctx context.Context, folder string, flags []string) (string, error) {
	out := ""
	for range 3 { // the first run after a change shows a temporary path
		cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"run", "-exec", "/bin/echo"}, flags, []string{"."})...) //nolint:gosec // our own sources
		cmd.Dir = folder
		var says bytes.Buffer
		cmd.Stderr = &says
		b, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("build %s: %w: %s", folder, err, bytes.TrimSpace(says.Bytes()))
		}
		out = strings.TrimSpace(string(b))
		if _, err := os.Stat(out); err == nil {
			return out, nil
		}
	}
	return "", fmt.Errorf("%s was built, but is not there: %s", folder, out) //nolint:err113 // for people
}

// ErrNoSource means that the working folder is not in the repository of this module.
var ErrNoSource = errors.New("the working folder is not in the sources of holdfast")

// Repository returns the folder of this module that the working folder is in. It reads no path of
// the program itself: with -trimpath there is none. Errors: ErrNoSource.
func Repository() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if isModule(filepath.Join(dir, "go.mod")) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	return "", errors.Join(ErrNoSource, err)
}

func isModule(file string) bool {
	f, err := os.Open(file) //nolint:gosec // above the working folder
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	return lines.Scan() && lines.Text() == "module github.com/holdfast-io/holdfast"
}

// Account returns that of a user, if this process is root's; otherwise nil. Servers that refuse to
// run as root have one.
func Account(name string) (*syscall.Credential, error) {
	if name == "" || os.Getuid() != 0 {
		return nil, nil //nolint:nilnil // none is needed
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("the account of the server: %w", err)
	}
	const bits = 32
	uid, err1 := strconv.ParseUint(u.Uid, 10, bits)
	gid, err2 := strconv.ParseUint(u.Gid, 10, bits)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("the account of the server: %w", err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// Chown gives a file to an account; nil: it stays.
func Chown(path string, account *syscall.Credential) error {
	if account == nil {
		return nil
	}
	return os.Chown(path, int(account.Uid), int(account.Gid)) //nolint:wrapcheck // it names the file
}
