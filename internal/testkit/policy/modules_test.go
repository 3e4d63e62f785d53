package policy_test

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// goMod is what a go.mod file says.
type goMod struct {
	goVersion string
	require   map[string]string // versions, by the paths of modules
	direct    map[string]bool   // the requirements that go.mod does not call indirect
	replace   map[string]string // folders, by the paths of modules
}

func parseGoMod(text string) *goMod {
	mod := &goMod{require: make(map[string]string), direct: make(map[string]bool), replace: make(map[string]string)}
	block := ""
	for line := range strings.Lines(text) {
		line, comment, _ := strings.Cut(line, "//")
		words := strings.Fields(line)
		if block != "" {
			words = slices.Insert(words, 0, block)
		}
		switch {
		case len(words) < 2:
		case words[1] == ")":
			block = ""
		case words[1] == "(":
			block = words[0]
		case words[0] == "go":
			mod.goVersion = words[1]
		case words[0] == "require" && len(words) == 3:
			mod.require[words[1]] = words[2]
			mod.direct[words[1]] = strings.TrimSpace(comment) != "indirect"
		case words[0] == "replace" && len(words) == 4:
			mod.replace[words[1]] = words[3]
		}
	}
	return mod
}

// ownRequirements adds to set the folders of our modules that a module requires, and those that these
// require.
func (m *moduleSources) ownRequirements(folder string, set map[string]bool) map[string]bool {
	for p := range m.mods[folder].require {
		if required, ours := m.own(p); ours && !set[required] && m.mods[required] != nil {
			set[required] = true
			m.ownRequirements(required, set)
		}
	}
	return set
}

func checkModules(m *moduleSources) []string {
	var faults []string
	versions := make(map[string]string) // "v1.2.3 in backend/redislock", by the path of the module
	for _, folder := range slices.Sorted(maps.Keys(m.mods)) {
		mod := m.mods[folder]
		fault := func(format string, args ...any) {
			faults = append(faults, path.Join(folder, "go.mod")+": "+fmt.Sprintf(format, args...))
		}
		if mod.goVersion != "1.26" && (folder == "." || !strings.HasPrefix(mod.goVersion, "1.26.")) {
			fault("go %s, want 1.26, or the patch of it that a requirement demands", mod.goVersion)
		}
		own := m.ownRequirements(folder, make(map[string]bool))
		if own[folder] {
			fault("it requires itself: the hash of a release would be a part of what is hashed")
		}
		for _, p := range slices.Sorted(maps.Keys(mod.require)) {
			version := mod.require[p]
			required, ours := m.own(p)
			switch {
			case folder == ".":
				fault("it requires %s; the root requires nothing", p)
			case ours && m.mods[required] == nil:
				fault("there is no %s", p)
			case ours && version != "v0.0.0":
				fault("%s %s, want v0.0.0: scripts/release sets the version", p, version)
			case ours:
			case versions[p] != "" && !strings.HasPrefix(versions[p], version+" "):
				fault("%s %s, and %s", p, version, versions[p])
			}
			versions[p] = version + " in " + folder
		}
		replaced := make(map[string]string)
		for required := range own {
			replaced[m.importPath(required)], _ = filepath.Rel(folder, required)
		}
		if !maps.Equal(mod.replace, replaced) {
			fault("it replaces %v, want %v", mod.replace, replaced)
		}
	}
	if m.names["go.sum"] {
		faults = append(faults, "there is a go.sum in the root, which requires nothing")
	}
	var used []string
	for line := range strings.Lines(m.work) {
		if folder, ok := strings.CutPrefix(strings.TrimSpace(line), "./"); ok || strings.TrimSpace(line) == "." {
			used = append(used, path.Clean(folder))
		}
	}
	if want := slices.Sorted(maps.Keys(m.mods)); !slices.Equal(slices.Sorted(slices.Values(used)), want) {
		faults = append(faults, fmt.Sprintf("go.work uses %v, want %v", used, want))
	}
	return faults
}

// dependenciesPage has a row for each library that a module requires directly.
const dependenciesPage = "docs/dependencies.md"

// checkDependencies checks that each direct requirement of a module has a row that names the library and
// the module's folder or one below it, and that ARCHITECTURE.md is still short.
func checkDependencies(m *moduleSources) []string {
	var faults []string
	const most = 150
	if n := strings.Count(m.pages["ARCHITECTURE.md"], "\n"); n > most {
		faults = append(faults, fmt.Sprintf("ARCHITECTURE.md: %d lines, more than %d: move a section to a page under docs", n, most))
	}
	for _, folder := range slices.Sorted(maps.Keys(m.mods)) {
		mod := m.mods[folder]
		for _, p := range slices.Sorted(maps.Keys(mod.direct)) {
			if _, ours := m.own(p); ours || !mod.direct[p] {
				continue
			}
			name := strings.TrimPrefix(p, "github.com/")
			if parent, last := path.Split(name); len(last) > 1 && last[0] == 'v' && strings.Trim(last[1:], "0123456789") == "" {
				name = path.Clean(parent)
			}
			found := false
			for line := range strings.Lines(m.pages[dependenciesPage]) {
				found = found || strings.HasPrefix(line, "|") && strings.Contains(line, "`"+name+"`") &&
					(strings.Contains(line, "`"+folder+"`") || strings.Contains(line, "`"+folder+"/"))
			}
			if !found {
				faults = append(faults, fmt.Sprintf("%s: no row has `%s` and `%s`", dependenciesPage, name, folder))
			}
		}
	}
	return faults
}

// readModules reads go.work, and the go.mod of every folder but those of tools.
func (m *moduleSources) readModules(fsys fs.FS, name string) error {
	text, err := fs.ReadFile(fsys, name)
	switch path.Base(name) {
	case "go.mod":
		m.mods[path.Dir(name)] = parseGoMod(string(text))
	case "go.work":
		m.work = string(text)
	}
	m.names[name] = true // go.sum is read too: the test cache then knows of it
	return err
}

// TestModulesAlone: every module is complete without the others of go.work, as scripts/release and
// whoever imports it need it.
func TestModulesAlone(t *testing.T) {
	leasetest.Slow(t) // the go command loads every module
	t.Parallel()
	files, err := filepath.Glob("go.mod")
	for _, pattern := range []string{"*/go.mod", "*/*/go.mod"} {
		more, _ := filepath.Glob(pattern)
		files = append(files, more...)
	}
	if err != nil || len(files) < 20 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		if strings.HasPrefix(file, "tools") {
			continue
		}
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "go", "mod", "tidy", "-diff")
		cmd.Dir, cmd.Env = filepath.Dir(file), append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s is not tidy (make tidy): %v\n%s", file, err, out)
		}
	}
}
