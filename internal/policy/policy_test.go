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
	if err := os.Chdir("../.."); err != nil {
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
		{"no-init", "importing a package has no side effects: programs call what they need", checkNoInit},
		{"no-globals", "two clients in one process share nothing: package-level variables are sentinel errors, embedded files, texts that the linker sets, and assertions to _", checkNoGlobals},
		{"package-doc", "a folder is explained in one place", checkPackageDoc},
		{"doc-comments", "every exported name is explained, in sentences", checkDocComments},
		{"file-size", "a file is read in one go: 500 lines is the aim, 600 the limit", checkFileSize},
		{"backend-files", "whoever knows one backend finds the way in all of them", checkBackendFiles},
		{"no-sleep", "a sleep ends neither with its context nor with the event it waits for: use a timer and select", checkNoSleep},
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

func checkNoInit(m *moduleSources) []string {
	var faults []string
	for s := range m.code() {
		for _, d := range s.file.Decls {
			if s.file.Name.Name == "helper" {
				continue // two processes of the command must start within a few milliseconds: its init says how
			}
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				faults = append(faults, m.at(f)+": func init")
			}
		}
	}
	return faults
}

func checkNoGlobals(m *moduleSources) []string {
	var faults []string
	for s := range m.code() {
		for _, d := range s.file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, spec := range g.Specs {
				v := spec.(*ast.ValueSpec)
				for i, name := range v.Names {
					if !goodGlobal(g, v, i) {
						faults = append(faults, fmt.Sprintf("%s: var %s", m.at(name), name.Name))
					}
				}
			}
		}
	}
	return faults
}

// goodGlobal allows assertions, embedded files, texts that the linker sets, and sentinel errors.
func goodGlobal(g *ast.GenDecl, v *ast.ValueSpec, i int) bool {
	if v.Names[i].Name == "_" {
		return true
	}
	directive := func(text string) bool {
		return slices.ContainsFunc([]*ast.CommentGroup{g.Doc, v.Doc}, func(doc *ast.CommentGroup) bool {
			return doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, text) })
		})
	}
	if directive("//go:embed ") {
		return true
	}
	if id, ok := v.Type.(*ast.Ident); ok && id.Name == "string" && len(v.Values) == 0 && directive("//nolint:gochecknoglobals // the linker sets it") {
		return true
	}
	name := v.Names[i].Name
	if !strings.HasPrefix(name, "Err") && !strings.HasPrefix(name, "err") || i >= len(v.Values) {
		return false
	}
	switch value := v.Values[i].(type) {
	case *ast.CallExpr:
		return isSelector(value.Fun, "errors", "New") || isSelector(value.Fun, "fmt", "Errorf")
	case *ast.SelectorExpr: // another package's sentinel under our name
		return strings.HasPrefix(value.Sel.Name, "Err")
	default:
		return false
	}
}

func isSelector(e ast.Expr, pkg, name string) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == pkg
}

func checkNoSleep(m *moduleSources) []string {
	var faults []string
	for s := range m.code() {
		spec, ok := s.imports()["time"]
		if !ok {
			continue
		}
		pkg := "time"
		if spec.Name != nil {
			pkg = spec.Name.Name
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if e, ok := n.(ast.Expr); ok && isSelector(e, pkg, "Sleep") {
				faults = append(faults, m.at(n)+": time.Sleep")
			}
			return true
		})
	}
	return faults
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

func checkBackendFiles(m *moduleSources) []string {
	var faults []string
	for _, folder := range m.folders() {
		if ok, _ := path.Match("backend/*lock", folder); !ok {
			continue
		}
		for _, name := range []string{"doc.go", "errors.go", "example_test.go", path.Base(folder) + ".go"} {
			if name == "errors.go" && path.Base(folder) == "memlock" {
				continue // it has no client library whose errors it could map
			}
			if !m.names[path.Join(folder, name)] {
				faults = append(faults, folder+": there is no "+name)
			}
		}
		text := m.packageDoc(path.Join(folder, "doc.go"))
		for _, heading := range []string{"Guarantees", "How it works", "Requires", "URL", "When the lock is lost", "Do not use when"} {
			if !strings.Contains("\n"+text, "\n# "+heading+"\n") {
				faults = append(faults, fmt.Sprintf("%s/doc.go: there is no heading %q", folder, "# "+heading))
			}
		}
		suite := func(s *goSource) bool { // remotelock's needs the server, which belongs to another module
			_, ok := s.imports()[m.path+"/backend/backendtest"]
			return ok && s.test && (s.folder == folder || s.folder == "internal/e2e/"+path.Base(folder))
		}
		if !slices.ContainsFunc(m.sources, suite) {
			faults = append(faults, folder+": no test runs the suite of backend/backendtest")
		}
	}
	return faults
}

// packageDoc returns the text above the package clause of one file.
func (m *moduleSources) packageDoc(name string) string {
	for _, s := range m.sources {
		if s.name == name && s.file.Doc != nil {
			return s.file.Doc.Text()
		}
	}
	return ""
}
