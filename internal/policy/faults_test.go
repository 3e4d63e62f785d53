package policy_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every fault is in docs/faults.md, with a word on every backend.
func TestPolicyFaultIndex(t *testing.T) {
	t.Parallel()
	index, err := os.ReadFile("docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 29; n++ {
		row := regexp.MustCompile(fmt.Sprintf(`(?m)^\| F%d .* \| (.*) \|$`, n)).FindSubmatch(index)
		if row == nil {
			t.Errorf("docs/faults.md has nothing on F%d", n)
			continue
		}
		shown := string(row[1])
		if strings.HasPrefix(shown, "all:") || strings.Contains(shown, "all the others:") {
			continue
		}
		for _, b := range []string{"sqlite", "redis", "redlock", "etcd", "zookeeper", "consul", "postgres", "postgres+advisory", "mysql", "mysql+getlock", "kubernetes", "holdfast"} {
			if !regexp.MustCompile(`(^|[ ,;])` + regexp.QuoteMeta(b) + `[,:]`).MatchString(shown) {
				t.Errorf("docs/faults.md does not say what becomes of F%d on %s", n, b)
			}
		}
	}
}
