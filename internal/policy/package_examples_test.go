package policy_test

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

// The first thing that a reader looks for in the documentation of a package is code to copy. An example
// with an output is compiled and run by every go test, so it does not go stale.
func TestPolicyPackageExamples(t *testing.T) {
	t.Parallel()
	faults, err := packagesWithoutExample(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range faults {
		t.Error(fault)
	}
}

// packagesWithoutExample looks at the public packages of all modules of the repository: those that another
// module can import. It leaves out commands, the examples themselves, and what only this repository uses.
func packagesWithoutExample(fsys fs.FS) ([]string, error) {
	public, shown := make(map[string]bool), make(map[string]bool)
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if base := path.Base(name); name != "." && (base[0] == '.' || base[0] == '_' || base == "testdata" || base == "internal") ||
				slices.Contains([]string{"bench", "bin", "cmd", "examples", "scripts", "tools"}, name) {
				return fs.SkipDir
			}
			return nil
		case path.Ext(name) != ".go":
			return nil
		}
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
		if err != nil {
			return err
		}
		folder := path.Dir(name)
		if strings.HasSuffix(name, "_test.go") {
			shown[folder] = shown[folder] || hasExample(file)
		} else if file.Name.Name != "main" {
			public[folder] = true
		}
		return nil
	})
	var faults []string
	for _, folder := range slices.Sorted(maps.Keys(public)) {
		if !shown[folder] {
			faults = append(faults, fmt.Sprintf("%s: no example with an output: write one in %s", folder, path.Join(folder, "example_test.go")))
		}
	}
	return faults, err
}

// hasExample reports whether the file of tests has an example that go test runs and compares.
func hasExample(file *ast.File) bool {
	return slices.ContainsFunc(doc.Examples(file), func(e *doc.Example) bool { return e.Output != "" || e.EmptyOutput })
}
