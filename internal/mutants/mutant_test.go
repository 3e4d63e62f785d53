package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The code that a mutant replaces exists exactly once, and the tests that must catch it exist
// too: a mutant that no longer applies shows nothing.
func TestMutantsApply(t *testing.T) {
	t.Parallel()
	all, err := mutants()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join("..", "..")
	perTarget := make(map[string]int)
	for _, m := range all {
		perTarget[m.target]++
		text, err := os.ReadFile(filepath.Join(root, m.file))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.apply(string(text)); err != nil {
			t.Error(err)
		}
		for _, name := range regexp.MustCompile(`Test[A-Za-z0-9]+`).FindAllString(m.tests, -1) {
			if !hasTest(t, filepath.Join(root, m.pkg), name) {
				t.Errorf("%s: %s: there is no %s in %s", m.target, m.name, name, m.pkg)
			}
		}
	}
	for target, n := range perTarget {
		if n < 10 {
			t.Errorf("%s has %d mutants, and not ten", target, n)
		}
	}
	for _, backend := range append(backends(t, root), "postgres+advisory", "mysql+getlock") {
		if perTarget[backend] == 0 {
			t.Errorf("there are no mutants of %s", backend)
		}
	}
}

// backends returns the existing backends, by the names of their targets.
func backends(t *testing.T, root string) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(root, "backend", "*lock"))
	if err != nil || len(dirs) < 11 {
		t.Fatalf("there are %d backends: %v", len(dirs), err)
	}
	targets := map[string]string{"memlock": "memory", "zklock": "zookeeper", "pglock": "postgres", "k8slock": "kubernetes", "remotelock": "holdfast", "redlock": "redlock"}
	var out []string
	for _, dir := range dirs {
		name := filepath.Base(dir)
		if target, ok := targets[name]; ok {
			out = append(out, target)
			continue
		}
		out = append(out, strings.TrimSuffix(name, "lock"))
	}
	return out
}

func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "func "+name+"(") {
			return true
		}
	}
	return false
}

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := parse("x", "A comment.\n\n== one\nfile a/b.go\ntests TestA\n--- old\n\tif x {\n--- new\n\tif true {\n\n== two\nfile a/lua/c.lua\npkg d\ntests TestB\n--- old\ny\n--- new\n")
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if m := got[0]; m.name != "one" || m.file != "a/b.go" || m.pkg != "a" || m.old != "\tif x {" || m.new != "\tif true {" {
		t.Errorf("%+v", m)
	}
	if m := got[1]; m.name != "two" || m.pkg != "d" || m.old != "y" || m.new != "" {
		t.Errorf("%+v", m)
	}
	for _, bad := range []string{"== one", "== one\nfile a\ntests b\n--- old\nx\n--- new\nx", "== one\nwhat a\n--- old\nx\n--- new\ny"} {
		if _, err := parse("x", bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
