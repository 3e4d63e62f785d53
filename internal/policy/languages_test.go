package policy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A document in two languages has the same content. The code in the README in Portuguese is also in
// the README. The two documents on choosing a store have the same tables, and name the same stores,
// tests and files, in the same order.
func TestPolicyLanguages(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	english := read("README.md")
	for _, line := range strange(read("README.pt-BR.md"), english) {
		t.Errorf("README.pt-BR.md has code that README.md has not: %s", line)
	}
	for _, pair := range [][2]string{{"docs/choosing.md", "docs/choosing.pt-BR.md"}} {
		en, pt := skeleton(read(pair[0])), skeleton(read(pair[1]))
		for i := range max(len(en), len(pt)) {
			var a, b string
			if i < len(en) {
				a = en[i]
			}
			if i < len(pt) {
				b = pt[i]
			}
			if a != b {
				t.Errorf("%s has %q where %s has %q", pair[0], a, pair[1], b)
				break
			}
		}
		if len(en) < 30 {
			t.Errorf("%s: only %d things were compared", pair[0], len(en))
		}
	}
}

// Each example has a page in Portuguese, which names the same tests and has the same tables.
func TestPolicyLanguagesOfExamples(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("examples/*/README.md")
	if err != nil || len(pages) < 6 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range append(pages, "examples/README.md") {
		english, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		portuguese, err := os.ReadFile(strings.Replace(page, "README.md", "README.pt-BR.md", 1))
		if err != nil {
			t.Error(err)
		}
		if en, pt := bones(string(english)), bones(string(portuguese)); !slices.Equal(en, pt) {
			t.Errorf("%s has %q, and its twin %q", page, en, pt)
		}
	}
}

// bones returns the tests that a page names, each once and in order, and how many rows and headings it has.
func bones(text string) []string {
	tests := regexp.MustCompile("`Test[A-Z][^`]*`").FindAllString(text, -1)
	slices.Sort(tests)
	count := func(pattern string) string {
		return pattern + strconv.Itoa(len(regexp.MustCompile(pattern).FindAllString(text, -1)))
	}
	return append(slices.Compact(tests), count("(?m)^\\|"), count("(?m)^#"))
}

// strange returns the lines of code of one text that the other does not have.
func strange(text, other string) []string {
	var out []string
	inside := false
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "```"):
			inside = !inside
		case inside && !strings.Contains(other, line):
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// skeleton returns the parts of a text that do not depend on the language: its headings as such,
// the rows of its tables by their cells, and its quoted code and links, without the generated
// parts.
func skeleton(text string) []string {
	text = regexp.MustCompile(`(?s)<!-- (\w+): generated.*?<!-- end of \w+ -->`).ReplaceAllString(text, "`generated: $1`")
	tokens := regexp.MustCompile("(?m)^#+ |^\\|.*\\|$|`[^`]+`|\\]\\([^)]+\\)")
	var out []string
	for _, m := range tokens.FindAllString(text, -1) {
		switch {
		case strings.HasPrefix(m, "#"):
			out = append(out, "a heading "+strings.TrimSpace(m))
		case strings.HasPrefix(m, "|"):
			out = append(out, "a row of "+strings.Repeat("|", strings.Count(m, "|")))
			out = append(out, regexp.MustCompile("`[^`]+`|\\]\\([^)]+\\)").FindAllString(m, -1)...)
		case strings.Contains(m, "choosing"): // each links to the other
		default:
			out = append(out, m)
		}
	}
	return out
}

// The rule finds the faults that it must find.
func TestPolicyLanguagesCatches(t *testing.T) {
	t.Parallel()
	if got := strange("a\n```\nmake run\nmake rum\n```\n", "```\nmake run\n```\n"); len(got) != 1 || got[0] != "make rum" {
		t.Errorf("%q", got)
	}
	same := "# A\n| `x` | b |\nsee [it](there.md) `C`\n"
	for _, other := range []string{
		"## A\n| `x` | b |\nsee [it](there.md) `C`\n", "# A\n| `y` | b |\nsee [it](there.md) `C`\n",
		"# A\n| `x` | b | c |\nsee [it](there.md) `C`\n", "# A\n| `x` | b |\nsee [it](here.md) `C`\n", "# A\n| `x` | b |\nsee [it](there.md)\n",
	} {
		if strings.Join(skeleton(other), "\n") == strings.Join(skeleton(same), "\n") {
			t.Errorf("%q passes for %q", other, same)
		}
	}
	if a, b := bones("# A\n`TestB`, `TestA`, `TestA`\n"), bones("# B\n`TestA` e `TestB`\n"); !slices.Equal(a, b) {
		t.Errorf("%q and %q", a, b)
	}
	for _, other := range []string{"# A\n`TestA`\n", "# A\n`TestA`, `TestB`\n| a |\n", "## A\n# B\n`TestA`, `TestB`\n"} {
		if slices.Equal(bones(other), bones("# A\n`TestA`, `TestB`\n")) {
			t.Errorf("%q passes", other)
		}
	}
	if a, b := skeleton(same), skeleton("# B\n| `x` | zwei |\nsiehe [es](there.md) `C`\n"); strings.Join(a, "\n") != strings.Join(b, "\n") {
		t.Errorf("%q and %q", a, b)
	}
}
