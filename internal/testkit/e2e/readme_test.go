package e2e_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// The program in the README compiles as it stands, and prints what it says.
func TestReadmeProgram(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	page, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```go\n")
	program, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("README.md has no program")
	}
	dir := t.TempDir()
	at, overlay := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json")
	program = strings.ReplaceAll(program, "sqlite:///tmp/locks.db", "sqlite://"+filepath.Join(dir, "locks.db"))
	if !strings.Contains(program, dir) {
		t.Fatal("the program has another file than this test expects")
	}
	inside, err := filepath.Abs("readme/main.go") // there is no such file: the overlay puts it into the module
	if err != nil {
		t.Fatal(err)
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {inside: at}})
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string][]byte{at: []byte(program), overlay: replace} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), "go", "run", "-overlay", overlay, "./readme").CombinedOutput()
	if err != nil || !regexp.MustCompile(`^charging with token [1-9][0-9]*\n$`).Match(out) {
		t.Errorf("%v: %s", err, out)
	}
}
