package policy_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// Every relative link in a Markdown file leads to a file of the repository, and every anchor to a heading.
func TestPolicyLinks(t *testing.T) {
	t.Parallel()
	pages := readAll(t, ".md")
	code := regexp.MustCompile("(?ms)^ *```.*?^ *```|`[^`\n]*`")
	links := regexp.MustCompile(`\]\(([^()\s]+)\)|(?m:^\[[^\]]+\]:\s+(\S+))`)
	for name, text := range pages {
		for _, m := range links.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			link := m[1] + m[2]
			if strings.Contains(link, ":") {
				continue
			}
			file, anchor, _ := strings.Cut(link, "#")
			to := name
			if file != "" {
				to = path.Join(path.Dir(name), file)
			}
			if _, err := os.Stat(to); err != nil || !fs.ValidPath(to) {
				t.Errorf("%s: there is no %s", name, link)
			} else if anchor != "" && !slices.Contains(anchorsOf(pages[to]), anchor) {
				t.Errorf("%s: there is no heading %s", name, link)
			}
		}
	}
}

// anchorsOf returns the anchors of the headings on a page, as GitHub makes them. Of equal headings it knows the first.
func anchorsOf(text string) []string {
	var anchors []string
	for _, m := range regexp.MustCompile(`(?m)^#+ +(.+?) *$`).FindAllStringSubmatch(text, -1) {
		heading := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(m[1], "$1")
		anchors = append(anchors, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsNumber(r):
				return unicode.ToLower(r)
			default:
				return -1
			}
		}, heading))
	}
	return anchors
}

// Every test and every case of the suite that a page names outside of its blocks of code exists.
func TestPolicyNamedTests(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for _, source := range readAll(t, ".go") {
		all.WriteString(source)
	}
	sources, names := all.String(), 0
	blocks := regexp.MustCompile("(?ms)^ *```.*?^ *```")
	named := regexp.MustCompile("`(Test[A-Z][A-Za-z0-9]*)(?:/([A-Za-z0-9-]+))?`|\\bC[0-9]+/([a-z-]+)")
	for page, text := range readAll(t, ".md") {
		for _, m := range named.FindAllStringSubmatch(blocks.ReplaceAllString(text, ""), -1) {
			names++
			if m[1] != "" && !strings.Contains(sources, "\nfunc "+m[1]+"(") || m[2]+m[3] != "" && !strings.Contains(sources, `"`+m[2]+m[3]+`"`) {
				t.Errorf("%s names %s, which is not there", page, m[0])
			}
		}
	}
	if names < 450 {
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
