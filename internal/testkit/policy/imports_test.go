package policy_test

import (
	"context"
	"fmt"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// importRules are what the picture of the layers does not say: the patterns of what a folder may import of this module.
// Tests may import anything.
func importRules() map[string][]string {
	public := []string{".", "fence", "fence/...", "backend", "backend/...", "open", "elector", "rowlock", "observe", "observe/...", "server"}
	return map[string][]string{
		".":            {"backend", "fence", "internal/acquire", "internal/clock", "internal/liveness"},
		"examples/...": append(public, "examples/internal/...", "examples/*/internal/..."),
		"verify":       {"verify/history"}, // and nothing of the workers that it judges
	}
}

// folderMatches reports whether a folder falls under a pattern: one of path.Match, or one that ends in "/..." for everything
// below.
func folderMatches(pattern, folder string) bool {
	if top, ok := strings.CutSuffix(pattern, "/..."); ok {
		for dir := folder; dir != "."; dir = path.Dir(dir) {
			if ok, _ := path.Match(top, dir); ok {
				return true
			}
		}
		return false
	}
	ok, _ := path.Match(pattern, folder)
	return ok
}

// own returns the folder that an import path of this module names.
func (m *moduleSources) own(importPath string) (string, bool) {
	if importPath == m.path {
		return ".", true
	}
	return strings.CutPrefix(importPath, m.path+"/")
}

func (m *moduleSources) importPath(folder string) string { return path.Join(m.path, folder) }

func checkImports(m *moduleSources) []string {
	var faults []string
	for pattern, allow := range importRules() {
		for s := range m.code() {
			if !folderMatches(pattern, s.folder) {
				continue
			}
			for p, spec := range s.imports() {
				folder, ours := m.own(p)
				if ours && !slices.ContainsFunc(allow, func(pattern string) bool { return folderMatches(pattern, folder) }) {
					faults = append(faults, fmt.Sprintf("%s: %s imports %s; it may import %s", m.at(spec), s.folder, folder, strings.Join(allow, ", ")))
				}
			}
		}
	}
	slices.Sort(faults)
	return faults
}

// checkCommand finds what is for tests in the command.
func checkCommand(m *moduleSources) []string {
	const command = "cmd/holdfast"
	if m.mods[command] == nil {
		return nil // the sources of a test
	}
	out, err := exec.CommandContext(context.Background(), "go", "list", "-deps", m.importPath(command)).CombinedOutput()
	if err != nil {
		return []string{fmt.Sprintf("go list: %v: %s", err, out)}
	}
	var faults []string
	for p := range strings.FieldsSeq(string(out)) {
		folder, _ := m.own(p)
		if p == "testing" || strings.HasPrefix(p, "testing/") || slices.Contains([]string{"internal/testkit/testserver", "internal/testkit/leasetest", "internal/testkit/launch", "internal/testkit/shim", "internal/testkit/simulate", "backend/backendtest"}, folder) {
			faults = append(faults, command+" compiles "+p)
		}
	}
	return faults
}
