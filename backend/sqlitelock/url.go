package sqlitelock

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-io/holdfast/internal/connect"
)

const scheme = "sqlite"

// DefaultPath returns the lock file of the user who runs the program, for programs that are not
// given another: /var/lib/holdfast/locks.db for root; else $XDG_STATE_HOME/holdfast/locks.db
// where that variable is an absolute path; else ~/.local/state/holdfast/locks.db. Open creates
// its directory. The error means that there is no home directory.
func DefaultPath() (string, error) {
	return defaultPath(os.Geteuid(), os.Getenv("XDG_STATE_HOME"), os.UserHomeDir)
}

func defaultPath(uid int, state string, home func() (string, error)) (string, error) {
	const file = "holdfast/locks.db"
	if uid == 0 {
		return filepath.Join("/var/lib", file), nil
	}
	if filepath.IsAbs(state) {
		return filepath.Join(state, file), nil
	}
	dir, err := home()
	if err != nil {
		return "", fmt.Errorf("default lock file: %w", err)
	}
	return filepath.Join(dir, ".local/state", file), nil
}

// parseTarget returns the path that a URL or a path names. See the URL heading of the package's
// documentation.
func parseTarget(target string) (string, error) {
	path := target
	name, rest, found := strings.Cut(target, ":")
	switch {
	case found && strings.EqualFold(name, scheme):
		var err error
		if path, err = parseURL(rest); err != nil {
			return "", err
		}
	case strings.HasPrefix(rest, "//") && !strings.Contains(name, "/"):
		return "", connect.URLError(name+"://…", "sqlite:///path, sqlite:path or a path")
	}
	switch {
	case path == "":
		return "", connect.URLError(target, "with a path")
	case strings.ContainsRune(path, 0):
		return "", connect.URLError(target, "without a zero byte")
	case path == ":memory:":
		return "", connect.URLError(target, "the path of a file; the memory backend has no file")
	case strings.HasSuffix(path, "/"):
		return "", connect.URLError(target, "the path of a file, not of a directory")
	}
	return path, nil
}

// parseURL parses what follows the scheme: //authority/path or a path, which is percent-encoded,
// and no parameters.
func parseURL(rest string) (string, error) {
	rest, _, fragment := strings.Cut(rest, "#")
	if fragment {
		return "", connect.URLError(scheme+":"+rest, "without a fragment; a # in the path is %23")
	}
	rest, query, _ := strings.Cut(rest, "?")
	if query != "" {
		name, _, _ := strings.Cut(query, "=")
		return "", connect.URLError(name, "left out: the URL has no parameters; a ? in the path is %3F")
	}
	if authority, ok := strings.CutPrefix(rest, "//"); ok {
		if !strings.HasPrefix(authority, "/") {
			return "", connect.URLError(scheme+"://…", "sqlite:///path: there is no host")
		}
		rest = authority
	}
	path, err := url.PathUnescape(rest)
	if err != nil {
		return "", connect.URLError(scheme+":"+rest, "percent-encoded")
	}
	return path, nil
}

// dataSource returns the path as SQLite's own URL, in which nothing of it has a special meaning.
func dataSource(path string) string {
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?_dqs=0"
}
