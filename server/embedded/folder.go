package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/holdfast-io/holdfast/internal/ownfile"
)

// etcdParts returns the folders of etcd that are checked for being copies.
func etcdParts() []string {
	member := filepath.Join(etcdDir, "member")
	return []string{etcdDir, member, filepath.Join(member, "snap"), filepath.Join(member, "wal")}
}

// makeDir creates the folder, or removes the permissions of other users from an existing one.
// It refuses a folder that belongs to another program or user, such as /tmp.
func makeDir(dir string) error {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return err //nolint:wrapcheck // it names the folder
	}
	if err := ownfile.Check(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err //nolint:wrapcheck // it names the folder
	}
	known := 0 // entries of a start that ended early, or of a new file system
	ours := false
	for _, e := range entries {
		switch e.Name() {
		case etcdDir, recordFile:
			ours = true
		case "lock", "peer.sock", "tls", recordFile + ".tmp":
			known++
		case "lost+found":
			known++
			continue // created by the file system, and owned by root
		default:
			continue
		}
		if err := ownfile.Check(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	ours = ours || known == len(entries)
	if !ours {
		return fmt.Errorf("%s: must be empty, or have the data of a node in it", dir)
	}
	for _, part := range etcdParts() {
		if err := ownfile.Check(filepath.Join(dir, part)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Chmod(dir, dirMode) //nolint:wrapcheck // it names the folder
}

// hasData reports whether etcd has run in the folder.
func hasData(dir string) (bool, error) {
	_, err := os.Lstat(filepath.Join(dir, etcdDir, "member", "wal"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err //nolint:wrapcheck // it names the folder
}

// places returns what distinguishes the folders of etcd, as far as they exist, from copies of
// them.
func places(dir string) (map[string]string, error) {
	all := make(map[string]string)
	for _, part := range etcdParts() {
		p, err := place(filepath.Join(dir, part))
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && p == "":
		case err != nil:
			return nil, err
		default:
			all[filepath.ToSlash(part)] = p
		}
	}
	return all, nil
}

// checkPlaces refuses a folder that was copied, or restored from a copy: its member may have
// sent more since then than the copy knows, and may still run elsewhere.
func (r *record) checkPlaces(dir string) error {
	now, err := places(dir)
	if err != nil {
		return err
	}
	for part, was := range r.Places {
		if is := now[part]; is != was {
			return fmt.Errorf("%s is a copy of the data of %s, or was restored from one (%s is not the folder that was written): "+
				"a copy can have forgotten what %s has said since. Where other nodes are left: \"holdfast cluster remove %s\", then start it with an empty folder; "+
				"where this is all that is left: \"holdfast cluster reclaim\": %w", dir, r.Name, part, r.Name, r.Name, ErrRefused)
		}
	}
	return nil
}
