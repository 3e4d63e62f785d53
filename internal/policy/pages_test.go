package policy_test

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// modulePath is that of the root module, with which the paths of all our packages begin.
const modulePath = "github.com/holdfast-io/holdfast"

// Every make target that a page names is in the Makefile, and every package of ours in a go command is in the
// tree. No page links to documentation that pkg.go.dev does not have, because the module is not published.
// TestDocsCommands of internal/cli checks the holdfast commands.
func TestPolicyPages(t *testing.T) {
	t.Parallel()
	faults, n, err := badPages(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range faults {
		t.Error(fault)
	}
	if n < 50 {
		t.Errorf("only %d commands were checked", n)
	}
}

// pagesOf returns the Markdown files of a tree, by name.
func pagesOf(tree fs.FS) (map[string]string, error) {
	pages := make(map[string]string)
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return enter(name)
		case path.Ext(name) != ".md":
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		pages[name] = string(text)
		return err
	})
	return pages, err
}

// badPages returns what is wrong with the make and go commands on the pages of a tree and with their links to
// pkg.go.dev, and how many commands it has checked.
func badPages(tree fs.FS) ([]string, int, error) {
	pages, err := pagesOf(tree)
	if err != nil {
		return nil, 0, err
	}
	makefile, err := fs.ReadFile(tree, "Makefile")
	if err != nil {
		return nil, 0, err
	}
	var targets, faults []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):`).FindAllStringSubmatch(string(makefile), -1) {
		targets = append(targets, m[1])
	}
	n := 0
	for name, text := range pages {
		if strings.Contains(text, "pkg.go.dev/"+modulePath) {
			faults = append(faults, name+": a link to our module on pkg.go.dev: link to the source")
		}
		for _, command := range commandsOf(text) {
			var fault string
			switch command[0] {
			case "make":
				fault = badTarget(command[1:], targets)
			case "go":
				fault = badPackage(tree, command[1:])
			default:
				continue
			}
			n++
			if fault != "" {
				faults = append(faults, fmt.Sprintf("%s: %s: %s", name, strings.Join(command, " "), fault))
			}
		}
	}
	slices.Sort(faults)
	return faults, n, nil
}

// commandsOf returns the words of each command in the code of a page, without what is set before it.
func commandsOf(page string) [][]string {
	blocks := regexp.MustCompile("(?ms)^ *```[a-z]*\n(.*?)^ *```")
	code := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(blocks.ReplaceAllString(page, ""), -1)
	var lines []string
	for _, m := range blocks.FindAllStringSubmatch(page, -1) {
		lines = append(lines, strings.Split(strings.ReplaceAll(m[1], "\\\n", " "), "\n")...)
	}
	for _, m := range code {
		lines = append(lines, strings.ReplaceAll(m[1], "\n", " "))
	}
	var commands [][]string
	for _, line := range lines {
		for _, command := range regexp.MustCompile(`\s(?:&&|\|\||\||;)\s`).Split(line, -1) {
			command, _, _ = strings.Cut(" "+command, " #")
			words := strings.Fields(command)
			for len(words) > 0 && (words[0] == "$" || words[0] == "sudo" || strings.Contains(words[0], "=")) {
				words = words[1:]
			}
			if len(words) > 0 {
				commands = append(commands, words)
			}
		}
	}
	return commands
}

// badTarget returns what is wrong with the first target among the arguments of make, or "".
func badTarget(args, targets []string) string {
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") || strings.Contains(arg, "=") {
			continue
		}
		if !slices.Contains(targets, arg) {
			return "the Makefile has no target " + arg
		}
		break // the words after it may be parts of a quoted value
	}
	return ""
}

// badPackage returns what is wrong with the packages of ours among the arguments of go, or "".
func badPackage(tree fs.FS, args []string) string {
	in := "."
	if i := slices.Index(args, "-C"); i >= 0 && i+1 < len(args) {
		in = args[i+1]
	}
	for _, arg := range args {
		arg, _, _ = strings.Cut(strings.Trim(arg, `"'`), "@")
		folder, ours := strings.CutPrefix(arg, modulePath)
		switch {
		case ours:
			folder = path.Join(".", folder)
		case strings.HasPrefix(arg, "./"):
			folder = path.Join(in, arg)
		default:
			continue
		}
		folder = path.Clean(strings.TrimSuffix(folder, "..."))
		if _, err := fs.Stat(tree, folder); err != nil {
			return "there is no " + folder
		}
		if args[0] == "run" {
			break // what follows are arguments of the program
		}
	}
	return ""
}

// The rule finds the faults that it must find, and no others.
func TestPolicyPagesCatches(t *testing.T) {
	t.Parallel()
	for page, want := range map[string]string{
		"```\n$ make run DATA='/tmp/a b'   # or make none\nA=b go test -run X ./shop/... && make -j2 run\n```\n": "",
		"`go test -C shop ./...`, `go run ./shop/main.go --flag ./x.sock`, a sentence: make none":                "",
		"`go install " + modulePath + "/shop@latest`, `go get " + modulePath + "`":                               "",
		"`make none A=b`":                                 "the Makefile has no target none",
		"```sh\nls && make none\n```":                     "the Makefile has no target none",
		"`go vet ./none`":                                 "there is no none",
		"`go test -C shop ./sub/...`":                     "there is no shop/sub",
		"```\n  go run \\\n  ./none\n```":                 "there is no none",
		"`go install " + modulePath + "/x@v1`":            "there is no x",
		"[a](https://pkg.go.dev/" + modulePath + "/shop)": "link to the source",
		"[a](https://pkg.go.dev/example.org/shop)":        "",
	} {
		faults, _, err := badPages(fstest.MapFS{
			"Makefile": {Data: []byte("run: ## run it\n\tgo run ./shop\n")}, "shop/main.go": {Data: []byte("package main\n")}, "docs/page.md": {Data: []byte(page)},
		})
		if got := strings.Join(faults, "\n"); err != nil || (want == "") != (got == "") || !strings.HasSuffix(got, want) {
			t.Errorf("%q: %q, %v; want %q", page, got, err, want)
		}
	}
}
