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
	"unicode"
)

// Every relative link in a Markdown file leads to a file of the repository, and every anchor to a heading.
func TestPolicyLinks(t *testing.T) {
	t.Parallel()
	faults, links, err := brokenLinks(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range faults {
		t.Error(fault)
	}
	if links < 100 {
		t.Errorf("only %d links were checked", links)
	}
}

// brokenLinks returns what is wrong with the links in the Markdown files of a tree, and how many it
// has checked. Links with a scheme, such as https, are not checked.
func brokenLinks(tree fs.FS) ([]string, int, error) {
	var faults []string
	links := 0
	pages, err := pagesOf(tree)
	for name, text := range pages {
		for _, link := range linksOf(text) {
			if strings.Contains(link, ":") {
				continue
			}
			links++
			if fault := broken(tree, pages, name, link); fault != "" {
				faults = append(faults, fmt.Sprintf("%s: [](%s): %s", name, link, fault))
			}
		}
	}
	slices.Sort(faults)
	return faults, links, err
}

// broken returns what is wrong with a link on a page, or "".
func broken(tree fs.FS, pages map[string]string, from, link string) string {
	file, anchor, hasAnchor := strings.Cut(link, "#")
	to := from
	if file != "" {
		to = path.Join(path.Dir(from), file)
	}
	if !fs.ValidPath(to) {
		return "it leaves the repository"
	}
	if _, err := fs.Stat(tree, to); err != nil {
		return "there is no " + to
	}
	if !hasAnchor {
		return ""
	}
	page, ok := pages[to]
	if !ok {
		return "an anchor in a file that is not Markdown"
	}
	if !slices.Contains(anchorsOf(page), anchor) {
		return fmt.Sprintf("%s has no heading with the anchor %q", to, anchor)
	}
	return ""
}

// linksOf returns the targets of the links on a page, without those in code.
func linksOf(text string) []string {
	text = regexp.MustCompile("(?ms)^ *```.*?^ *```").ReplaceAllString(text, "")
	text = regexp.MustCompile("`[^`]*`").ReplaceAllString(text, "")
	var links []string
	for _, m := range regexp.MustCompile(`\]\(([^()\s]+)(?:\s+"[^"]*")?\)|(?m:^\[[^\]]+\]:\s+(\S+))|href="([^"]+)"`).FindAllStringSubmatch(text, -1) {
		links = append(links, m[1]+m[2]+m[3])
	}
	return links
}

// anchorsOf returns the anchors of the headings on a page, as GitHub makes them.
func anchorsOf(text string) []string {
	text = regexp.MustCompile("(?ms)^ *```.*?^ *```").ReplaceAllString(text, "")
	var anchors []string
	seen := make(map[string]int)
	for _, m := range regexp.MustCompile(`(?m)^#+ +(.+?) *$`).FindAllStringSubmatch(text, -1) {
		heading := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(m[1], "$1")
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsNumber(r):
				return unicode.ToLower(r)
			default:
				return -1
			}
		}, heading)
		n := seen[anchor]
		seen[anchor]++
		if n > 0 {
			anchor = fmt.Sprintf("%s-%d", anchor, n)
		}
		anchors = append(anchors, anchor)
	}
	return anchors
}

// The rule finds the faults that it must find, and no others.
func TestPolicyLinksCatches(t *testing.T) {
	t.Parallel()
	other := "# A page\n\n## `Do`, and *more* (1)\n\n## Twice\n\n## Twice\n\n```\n# not a heading\n```\n"
	for link, fault := range map[string]string{
		"[a](other.md)":                           "",
		"[a](other.md \"its title\")":             "",
		"[a](../code.go)":                         "",
		"[a](#here)":                              "",
		"[a\nb](other.md#a-page)":                 "",
		"[a](other.md#do-and-more-1)":             "",
		"[a](other.md#twice-1)":                   "",
		"[a](https://example.com/none)":           "",
		"`[a](none.md)`":                          "",
		"```\n[a](none.md)\n```":                  "",
		"[a](none.md)":                            "there is no docs/none.md",
		"[a][b]\n\n[b]: none.md":                  "there is no docs/none.md",
		`<a href="none.md">a</a>`:                 "there is no docs/none.md",
		"[a](../../code.go)":                      "it leaves the repository",
		"[a](#there)":                             `docs/page.md has no heading with the anchor "there"`,
		"[a](other.md#twice-2)":                   `docs/other.md has no heading with the anchor "twice-2"`,
		"[a](other.md#not-a-heading)":             `docs/other.md has no heading with the anchor "not-a-heading"`,
		"[a](../code.go#L3)":                      "an anchor in a file that is not Markdown",
		"[a](other.md) and [b](other.md#A-page).": `docs/other.md has no heading with the anchor "A-page"`,
	} {
		tree := fstest.MapFS{
			"code.go":       {Data: []byte("package a\n")},
			"docs/page.md":  {Data: []byte("# Here\n\n" + link + "\n")},
			"docs/other.md": {Data: []byte(other)},
		}
		faults, _, err := brokenLinks(tree)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(faults, "; "); fault == "" && got != "" || !strings.HasSuffix(got, fault) {
			t.Errorf("%q: %q, not %q", link, got, fault)
		}
	}
}
