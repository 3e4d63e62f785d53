package holdfast_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test that docs/bugs.md names is there.
func TestPolicyBugIndex(t *testing.T) {
	t.Parallel()
	index, err := os.ReadFile("docs/bugs.md")
	if err != nil {
		t.Fatal(err)
	}
	var sources strings.Builder
	err = filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
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
	for n := 1; n <= 28; n++ {
		row := regexp.MustCompile(fmt.Sprintf(`(?m)^\| (B[0-9]+, )*B%d[ ,].*\|.*(Test|C[0-9]+/).*\|$`, n))
		if !row.Match(index) {
			t.Errorf("docs/bugs.md has no test for the class B%d", n)
		}
	}
	names := 0
	for _, m := range regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(index), -1) {
		names++
		if !strings.Contains(all, "func "+m[1]+"(") {
			t.Errorf("docs/bugs.md names %s, which is not there", m[1])
		}
	}
	for _, m := range regexp.MustCompile(`C[0-9]+/([a-z-]+)`).FindAllStringSubmatch(string(index), -1) {
		names++
		if !strings.Contains(all, `"`+m[1]+`"`) {
			t.Errorf("docs/bugs.md names the case %s, which is not there", m[1])
		}
	}
	if names < 30 {
		t.Errorf("only %d names were found", names)
	}
}
