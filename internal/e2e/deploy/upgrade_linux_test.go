package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// before makes the manual that of the commit before this one: its page, and its command. It returns false where there
// is no such commit, as in a shallow clone, or none that can be built.
func (m *manual) before() bool {
	t := m.t
	t.Helper()
	tree := t.TempDir()
	do := func(text string) error {
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", text, "sh", tree)
		cmd.Dir, cmd.Env = file(t), append(os.Environ(), "CGO_ENABLED=0", "GOWORK="+filepath.Join(tree, "go.work"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Logf("there is no commit before this one that can be built: %v\n%s", err, out)
		}
		return err
	}
	// With the flags of the package, so that most of it is in the cache.
	if do(`git rev-parse -q --verify HEAD~1 >/dev/null; git archive HEAD~1 | tar -x -C "$1"`) != nil ||
		do(`cd "$1"; go build -trimpath -buildvcs=false -ldflags "-s -w" -o former ./cmd/holdfast`) != nil {
		return false
	}
	page, err := os.ReadFile(filepath.Join(tree, "docs", "operations.md"))
	if err == nil {
		m.blocks, err = blocksOf(string(page))
	}
	if err != nil { // a fault of that commit
		t.Logf("the page of the commit before: %v", err)
		return false
	}
	m.command(filepath.Join(tree, "former"))
	for _, name := range []string{"certificates", "serve", "init", "backend"} {
		if m.blocks[name] == "" {
			t.Logf("the page of the commit before has no block %q", name)
			return false
		}
	}
	return true
}

// A cluster of the commit before, formed as its page says, becomes one of this commit, one node at a time. What is held
// stays held, also while nodes of both run. In a clone without the commit before, TestOperations has to do, which
// replaces nodes by others of the same commit.
func TestUpgradeFromTheCommitBefore(t *testing.T) {
	t.Parallel()
	m := openManual(t)
	blocks := m.blocks
	if !m.before() {
		return
	}
	s := m.site()
	s.on("a").run("certificates")
	s.up("a", "b", "c")
	s.prefix = s.block("backend")
	s.await(s.nodes["a"], "init")
	s.execute("holdfast acquire kept --ttl 1h --lease lease-of-the-test-0001")
	s.whole(3)
	m.blocks = blocks
	m.command(holdfast(t))
	s.prefix = ""
	s.prefix = s.on("a").block("backend")
	for _, node := range []string{"a", "b", "c"} {
		s.nodes[node].Terminate()
		s.up(node)
		s.whole(3)
	}
}
