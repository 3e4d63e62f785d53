package main

import (
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"
)

//go:embed data/*.txt
var data embed.FS

// mutant is one fault that is put into our own code.
type mutant struct {
	target string // the name of its file in data
	name   string // what is wrong then
	file   string // from the root of the module
	pkg    string // the folder whose tests must catch it
	tests  string // a pattern of go test -run
	old    string // stands in the file exactly once
	new    string
}

// mutants returns those of all files in data, in order.
func mutants() ([]mutant, error) {
	files, err := data.ReadDir("data")
	if err != nil {
		return nil, err
	}
	var all []mutant
	for _, f := range files {
		text, err := data.ReadFile(path.Join("data", f.Name()))
		if err != nil {
			return nil, err
		}
		some, err := parse(strings.TrimSuffix(f.Name(), ".txt"), string(text))
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// folder returns the folder of the Go package that the file belongs to.
func (m *mutant) folder() string {
	return strings.TrimSuffix(path.Dir(m.file), "/lua")
}

// parse reads the mutants of a file:
//
//	== what is wrong then
//	file backend/xlock/release.go
//	tests TestConformance/cases/C5
//	--- old
//	lines as they are
//	--- new
//	lines as they become
//
// A line "pkg" names the folder of the tests where it is not the one of the file. Text before
// the first mutant is a comment.
func parse(target, text string) ([]mutant, error) {
	var all []mutant
	_, text, _ = strings.Cut("\n"+text, "\n== ")
	for block := range strings.SplitSeq(text, "\n== ") {
		head, rest, ok1 := strings.Cut(block, "\n--- old\n")
		old, fresh, ok2 := strings.Cut(rest, "\n--- new\n")
		lines := strings.Split(head, "\n")
		m := mutant{target: target, name: lines[0], old: old, new: strings.TrimSuffix(fresh, "\n")}
		for _, line := range lines[1:] {
			key, value, _ := strings.Cut(line, " ")
			field, ok := map[string]*string{"file": &m.file, "pkg": &m.pkg, "tests": &m.tests}[key]
			if !ok || value == "" {
				return nil, fmt.Errorf("%s: %q: the line %q", target, m.name, line)
			}
			*field = value
		}
		if m.pkg == "" {
			m.pkg = m.folder()
		}
		if !ok1 || !ok2 || m.file == "" || m.tests == "" || m.old == "" || m.old == m.new {
			return nil, fmt.Errorf("%s: %q is not complete", target, m.name)
		}
		if slices.ContainsFunc(all, func(o mutant) bool { return o.name == m.name }) {
			return nil, fmt.Errorf("%s: there are two of %q", target, m.name)
		}
		all = append(all, m)
	}
	return all, nil
}

// apply returns the text of the file with the fault in it.
func (m *mutant) apply(text string) (string, error) {
	if n := strings.Count(text, m.old); n != 1 {
		return "", fmt.Errorf("%s: %s: what is to be replaced is in %s %d times, and must be there once", m.target, m.name, m.file, n)
	}
	return strings.Replace(text, m.old, m.new, 1), nil
}
