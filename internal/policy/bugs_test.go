package policy_test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every class of bugs has a test.
func TestPolicyBugIndex(t *testing.T) {
	t.Parallel()
	index, err := os.ReadFile("docs/bugs.md")
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 28; n++ {
		row := regexp.MustCompile(fmt.Sprintf(`(?m)^\| (B[0-9]+, )*B%d[ ,].*\|.*(Test|C[0-9]+/).*\|$`, n))
		if !row.Match(index) {
			t.Errorf("docs/bugs.md has no test for the class B%d", n)
		}
	}
}

// Every test and every case of the suite that a page names exists.
func TestPolicyNamedTests(t *testing.T) {
	t.Parallel()
	sources, names := slices.Collect(maps.Values(readAll(t, ".go"))), 0
	for page, text := range readAll(t, ".md") {
		missing, n := missingTests(text, sources)
		names += n
		for _, name := range missing {
			t.Errorf("%s names %s, which is not there", page, name)
		}
	}
	if names < 500 {
		t.Errorf("only %d names were found", names)
	}
}

// readAll returns the files of the repository whose names end with ext.
func readAll(t *testing.T, ext string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return enter(path)
		case filepath.Ext(path) != ext:
			return nil
		}
		text, err := os.ReadFile(path)
		files[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// missingTests returns the tests, with their cases, and the cases of the suite that a text outside of its blocks of code
// names and that the sources do not have, and how many it names.
func missingTests(text string, sources []string) ([]string, int) {
	has := func(what string) bool {
		return slices.ContainsFunc(sources, func(source string) bool { return strings.Contains(source, what) })
	}
	var missing []string
	found := namesIn(text)
	for _, m := range found {
		if m[1] != "" && !has("\nfunc "+m[1]+"(") || m[2]+m[3] != "" && !has(`"`+m[2]+m[3]+`"`) {
			missing = append(missing, strings.Trim(m[0], "`"))
		}
	}
	return missing, len(found)
}

// namesIn returns the names in a page outside of its blocks of code: of a test and of its case, or of a case of the suite.
func namesIn(page string) [][]string {
	text := regexp.MustCompile("(?ms)^ *```.*?^ *```").ReplaceAllString(page, "")
	return regexp.MustCompile("`(Test[A-Z][A-Za-z0-9]*)(?:/([A-Za-z0-9-]+))?`|\\bC[0-9]+/([a-z-]+)").FindAllStringSubmatch(text, -1)
}

// The rule finds the names that it must find, and no others.
func TestPolicyNamedTestsCatches(t *testing.T) {
	t.Parallel()
	sources := []string{"package a\n\nfunc TestHere(t *testing.T) {\n\tt.Run(\"Case\", one)\n}\n"}
	for text, want := range map[string]string{
		"`TestHere`, `TestHere/Case`, Test driven":            "",
		"```go\nfunc TestThere(t *testing.T) {}\n```\n":       "",
		"see `TestThere`.":                                    "TestThere",
		"`TestHere/Other`, `TestThere/Case`, C3/no-such-case": "TestHere/Other TestThere/Case C3/no-such-case",
	} {
		if got, _ := missingTests(text, sources); strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
