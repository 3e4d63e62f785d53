package e2e_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

const root = "../../.."

// Every Go block of the documents compiles, and its tests pass. An HTML comment on the line before a
// block changes what is done with it:
//
//	<!-- given: db *sql.DB -->      the block uses these variables too
//	<!-- in: path/of/a/file.go -->  the block is a copy of lines of that file, which compiles by itself
//	<!-- not compiled: REASON -->   the block is left out
//
// A block is a whole program, declarations, or statements. Declarations and statements get the
// imports that they need. Statements become a block in a function with the parameters ctx
// (context.Context) and locks (*holdfast.Client) that returns an error.
func TestDocs(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	pages := []string{"README.md"}
	err := fs.WalkDir(os.DirFS(root), "docs", func(name string, _ fs.DirEntry, err error) error {
		if filepath.Ext(name) == ".md" {
			pages = append(pages, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var blocks []goBlock
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, goBlocks(page, string(text))...)
	}
	if len(blocks) < 10 {
		t.Errorf("only %d blocks were found", len(blocks))
	}
	for _, fault := range checkBlocks(t, blocks) {
		t.Error(fault)
	}
}

// goBlock is one block of Go on a page.
type goBlock struct {
	page string
	line int    // of the fence
	kind string // of the comment before it: "given", "in", "not compiled", or ""
	note string // the rest of that comment
	text string
}

func goBlocks(page, text string) []goBlock {
	var blocks []goBlock
	for _, m := range regexp.MustCompile("(?ms)(?:^<!-- (given|in|not compiled): ([^\n]+) -->\n+)?^```go\n(.*?)^```").FindAllStringSubmatchIndex(text, -1) {
		part := func(n int) string {
			if m[2*n] < 0 {
				return ""
			}
			return text[m[2*n]:m[2*n+1]]
		}
		blocks = append(blocks, goBlock{page: page, line: strings.Count(text[:m[6]], "\n"), kind: part(1), note: part(2), text: part(3)})
	}
	return blocks
}

// checkBlocks returns what is wrong with the blocks. It gives each a package in a module of its own,
// beside ours in a workspace, and runs their tests: that compiles the packages without tests, too.
func checkBlocks(t *testing.T, blocks []goBlock) []string {
	t.Helper()
	var faults []string
	dir := newModule(t)
	known := knownPackages(t)
	for i, b := range blocks {
		at := fmt.Sprintf("%s:%d: ", b.page, b.line)
		switch b.kind {
		case "not compiled":
			continue
		case "in":
			source, err := os.ReadFile(filepath.Join(root, b.note))
			if err != nil || !strings.Contains(string(source), b.text) {
				faults = append(faults, at+b.note+" has no such lines")
			}
			continue
		}
		source, err := b.source(known)
		if err != nil {
			faults = append(faults, at+"it is not Go: "+err.Error())
			continue
		}
		name := "block.go"
		if strings.Contains(source, "\nfunc Test") {
			name = "block_test.go"
		}
		write(t, filepath.Join(dir, fmt.Sprintf("block%d", i), name), source)
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK="+filepath.Join(dir, "go.work"))
	if out, err := cmd.CombinedOutput(); err != nil {
		faults = append(faults, fmt.Sprintf("%v:\n%s", err, out))
	}
	return faults
}

// newModule returns the folder of a new module in a workspace with all of ours.
func newModule(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"go.work", "go.work.sum"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		top, err := filepath.Abs(root)
		if err != nil {
			t.Fatal(err)
		}
		if name == "go.work" {
			text = append(regexp.MustCompile(`(?m)^\t\.`).ReplaceAll(text, []byte("\t"+top)), "\nuse .\n"...)
		}
		write(t, filepath.Join(dir, name), string(text))
	}
	write(t, filepath.Join(dir, "go.mod"), "module example.com/docs\n\ngo 1.26\n")
	return dir
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// source returns the block as a file of Go. Errors of the compiler name the lines of the page.
func (b goBlock) source(known map[string]string) (string, error) {
	line := fmt.Sprintf("\n//line %s:%d\n", b.page, b.line+1)
	if strings.HasPrefix(b.text, "package ") {
		return line + b.text, nil
	}
	text := line + b.text
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", "package docs\n"+text, parser.SkipObjectResolution)
	if err != nil {
		given := ""
		if b.kind == "given" {
			given = ", " + b.note
		}
		text = fmt.Sprintf("func _(ctx context.Context, locks *holdfast.Client%s) error {{%s\n}\nreturn nil\n}\n", given, text)
		if file, err = parser.ParseFile(fset, "", "package docs\n"+text, parser.SkipObjectResolution); err != nil {
			return "", fmt.Errorf("parse: %w", err)
		}
	}
	own := make(map[string]bool)
	for _, spec := range file.Imports {
		own[strings.Trim(spec.Path.Value, `"`)] = true
	}
	imports := make(map[string]bool)
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && known[x.Name] != "" && !own[known[x.Name]] {
				imports[known[x.Name]] = true
			}
		}
		return true
	})
	var head strings.Builder
	head.WriteString("package docs\n\n")
	for _, path := range slices.Sorted(maps.Keys(imports)) {
		fmt.Fprintf(&head, "import %q\n", path)
	}
	return head.String() + text, nil
}

// knownPackages returns the import paths of the packages that a block may use without an import, by
// their names: our public ones, some of the standard library, and a client library.
func knownPackages(t *testing.T) map[string]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Name}} {{.ImportPath}}", "work").Output()
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		if name, path, _ := strings.Cut(strings.TrimSpace(line), " "); name != "main" && !strings.Contains(path, "/internal/") {
			known[name] = path
		}
	}
	for _, path := range []string{
		"context", "database/sql", "errors", "fmt", "log", "log/slog", "net/http", "os", "sync", "sync/atomic", "testing", "testing/synctest", "time",
		"github.com/redis/rueidis",
	} {
		known[path[strings.LastIndexByte(path, '/')+1:]] = path
	}
	return known
}
