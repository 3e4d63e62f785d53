package policy_test

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"testing"
)

// largest is the maximum size of a file of the repository in bytes: every clone contains all files,
// for ever. Build output is nearly always larger.
const largest = 1 << 20

// Build output that is left in its folder is not committed with the rest. The nested modules are
// checked too.
func TestPolicyFiles(t *testing.T) {
	t.Parallel()
	faults, err := largeFiles(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range faults {
		t.Error(fault)
	}
}

// leave returns fs.SkipDir for a folder of git or of what was built, stored or drawn here.
func leave(name string) error {
	if slices.Contains([]string{".git", "bin", ".data", ".screenshots"}, name) {
		return fs.SkipDir
	}
	return nil
}

// largeFiles ignores the files that .gitignore excludes.
func largeFiles(fsys fs.FS) ([]string, error) {
	var faults []string
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return leave(name)
		}
		if slices.Contains([]string{".test", ".prof", ".out"}, path.Ext(name)) {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Size() > largest {
			faults = append(faults, fmt.Sprintf("%s: %d bytes, more than %d", name, info.Size(), largest))
		}
		return nil
	})
	return faults, err
}
