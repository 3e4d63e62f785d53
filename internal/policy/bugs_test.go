package policy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test that docs/bugs.md names exists.
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
	for _, missing := range missingTests(t, string(index)) {
		t.Errorf("docs/bugs.md names %s, which is not there", missing)
	}
}

// missingTests returns the tests and the cases of the suite that a text names and that do not
// exist. A text that names few is incomplete.
func missingTests(t *testing.T, text string) []string {
	t.Helper()
	var sources strings.Builder
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		b, err := os.ReadFile(path)
		sources.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	all := sources.String()
	var missing []string
	names := 0
	for _, m := range regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(text, -1) {
		names++
		if !strings.Contains(all, "func "+m[1]+"(") {
			missing = append(missing, m[1])
		}
	}
	for _, m := range regexp.MustCompile(`C[0-9]+/([a-z-]+)`).FindAllStringSubmatch(text, -1) {
		names++
		if !strings.Contains(all, `"`+m[1]+`"`) {
			missing = append(missing, m[0])
		}
	}
	if names < 30 {
		t.Errorf("only %d names were found", names)
	}
	return missing
}
