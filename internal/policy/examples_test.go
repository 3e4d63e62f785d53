package policy_test

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// checkExamples looks at the commands right under examples/.
func checkExamples(m *moduleSources) []string {
	var faults []string
	for _, folder := range m.folders() {
		if path.Dir(folder) != "examples" {
			continue
		}
		in := func(s *goSource) bool { return s.folder == folder }
		if n := slices.IndexFunc(m.sources, func(s *goSource) bool { return in(s) && !s.test }); m.sources[n].file.Name.Name != "main" {
			continue
		}
		if !slices.ContainsFunc(m.sources, func(s *goSource) bool { return in(s) && s.test }) {
			faults = append(faults, folder+" has no tests")
		}
		name := path.Base(folder)
		if row := "[" + name + "](" + name + ")"; !strings.Contains(m.pages["examples/README.md"], row) {
			faults = append(faults, "examples/README.md has no row "+row)
		}
		page, ok := m.pages[folder+"/README.md"]
		run, test := "go run ./"+folder, regexp.MustCompile(`go test [^\n]*\./`+regexp.QuoteMeta(folder))
		switch {
		case !ok:
			faults = append(faults, folder+": there is no README.md")
		case !strings.Contains(page, run):
			faults = append(faults, fmt.Sprintf("%s/README.md does not say %q", folder, run))
		case !test.MatchString(page):
			faults = append(faults, fmt.Sprintf("%s/README.md does not say %q after go test", folder, "./"+folder))
		}
	}
	return faults
}
