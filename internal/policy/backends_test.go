package policy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every backend has a page with the same headings in the same order, so that a reader who compares
// two backends finds the same topic in the same place. No scheme of a URL is on two pages. That every
// scheme has a page is tested in open.
func TestPolicyBackendPages(t *testing.T) {
	t.Parallel()
	headings := []string{"Guarantees", "How it works", "Requires", "URL", "When the lock is lost", "Do not use when"}
	pages, err := filepath.Glob("docs/backends/*.md")
	if err != nil {
		t.Fatal(err)
	}
	heading := regexp.MustCompile(`(?m)^## (.*)$`)
	scheme := regexp.MustCompile(`(?m)(?:^| {2,})([a-z][a-z+]*):`)
	told := make(map[string]string)
	for _, path := range pages {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range heading.FindAllSubmatch(text, -1) {
			got = append(got, string(m[1]))
		}
		if !slices.Equal(got, headings) {
			t.Errorf("%s has the headings %q; each page has %q", path, got, headings)
			continue
		}
		_, url, _ := strings.Cut(string(text), "\n## URL\n")
		url, _, _ = strings.Cut(url, "\n## ")
		for _, m := range scheme.FindAllStringSubmatch(url, -1) {
			if other, twice := told[m[1]]; twice && other != path {
				t.Errorf("%s: is on %s and on %s", m[1], other, path)
			}
			told[m[1]] = path
		}
	}
}
