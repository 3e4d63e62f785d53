package policy_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestMain enters the root of the repository, so that every path in the rules is one of its paths.
func TestMain(m *testing.M) {
	if err := os.Chdir("../../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestPolicy checks rules about the sources that a compiler does not. It parses the sources itself,
// through package os, so that a change to any of them, or a new file, invalidates the cached test
// result; an answer of the go command would not. The rules match folders by pattern, so a new
// folder is covered by itself.
func TestPolicy(t *testing.T) {
	t.Parallel()
	m, err := parseModule(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.sources) == 0 {
		t.Fatal("there are no sources here")
	}
	for _, r := range policyRules() {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			for _, fault := range r.check(m) {
				t.Errorf("%s\n\twhy: %s", fault, r.why)
			}
		})
	}
}

// policyRule finds faults in the sources.
type policyRule struct {
	name  string
	why   string
	check func(m *moduleSources) []string
}

func policyRules() []policyRule {
	return []policyRule{
		{"imports", "the root is small, the examples use what users can import, and the referee shares nothing with the workers that it judges", checkImports},
		{"layers", "a reader learns the tree from the bottom up, and a change of a package concerns only the layers above it: ARCHITECTURE.md has the picture", checkLayers},
		{"modules", "a program that imports one package gets the requirements of one: our modules form a tree above a root that requires nothing; see docs/adr/0010-a-module-for-each-store.md", checkModules},
		{"dependencies", "whoever adds a requirement says why, where readers look for it; and a page that grows without bound is not read", checkDependencies},
		{"command", "the command that people install has no test harness in it", checkCommand},
		{"file-size", "a file is read in one go: 500 lines is the aim, 600 the limit", checkFileSize},
	}
}

// moduleSources are all Go files of the repository, whatever module they belong to. testdata, tools,
// and folders whose name begins with a dot or an underscore are not part of it.
type moduleSources struct {
	path    string // of the root module, with which every other one begins
	fset    *token.FileSet
	sources []*goSource // in order of their names
	names   map[string]bool
	mods    map[string]*goMod // by folder
	work    string            // go.work
	pages   map[string]string // ARCHITECTURE.md and docs/dependencies.md
}

// goSource is one Go file.
type goSource struct {
	name   string // "backend/redislock/doc.go"
	folder string // "backend/redislock"; the root is "."
	test   bool
	lines  int
	file   *ast.File
}

func parseModule(fsys fs.FS) (*moduleSources, error) {
	m := &moduleSources{fset: token.NewFileSet(), names: make(map[string]bool), mods: make(map[string]*goMod), pages: make(map[string]string)}
	mod, err := fs.ReadFile(fsys, "go.mod")
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(string(mod), "\n")
	m.path = strings.TrimPrefix(first, "module ")
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return enter(name)
		}
		switch {
		case path.Ext(name) == ".go":
			return m.parse(fsys, name)
		case slices.Contains([]string{"go.mod", "go.sum", "go.work"}, path.Base(name)):
			return m.readModules(fsys, name)
		case name == "ARCHITECTURE.md", name == dependenciesPage:
			text, err := fs.ReadFile(fsys, name)
			m.pages[name] = string(text)
			return err
		default:
			return nil
		}
	})
	return m, err
}

// enter returns fs.SkipDir for a folder without sources of ours.
func enter(name string) error {
	base := path.Base(name)
	if name != "." && (base == "testdata" || base[0] == '.' || base[0] == '_' || name == "tools" || name == "bin") {
		return fs.SkipDir
	}
	return nil
}

func (m *moduleSources) parse(fsys fs.FS, name string) error {
	text, err := fs.ReadFile(fsys, name)
	if err != nil {
		return err
	}
	file, err := parser.ParseFile(m.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	m.names[name] = true
	m.sources = append(m.sources, &goSource{
		name:   name,
		folder: path.Dir(name),
		test:   strings.HasSuffix(name, "_test.go"),
		lines:  bytes.Count(text, []byte("\n")),
		file:   file,
	})
	return nil
}

// folders returns those with Go files that are not tests, in order.
func (m *moduleSources) folders() []string {
	set := make(map[string]bool)
	for s := range m.code() {
		set[s.folder] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// code yields the files that are not tests.
func (m *moduleSources) code() func(yield func(*goSource) bool) {
	return func(yield func(*goSource) bool) {
		for _, s := range m.sources {
			if !s.test && !yield(s) {
				return
			}
		}
	}
}

// at returns the position of n: "backend/doc.go:12".
func (m *moduleSources) at(n ast.Node) string {
	pos := m.fset.Position(n.Pos())
	return fmt.Sprintf("%s:%d", pos.Filename, pos.Line)
}

// imports returns the import paths of a file.
func (s *goSource) imports() map[string]*ast.ImportSpec {
	specs := make(map[string]*ast.ImportSpec)
	for _, spec := range s.file.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			specs[p] = spec
		}
	}
	return specs
}

func checkFileSize(m *moduleSources) []string {
	const limit = 600
	var faults []string
	for _, s := range m.sources {
		if s.lines > limit && !ast.IsGenerated(s.file) {
			faults = append(faults, fmt.Sprintf("%s: %d lines", s.name, s.lines))
		}
	}
	return faults
}
