package policy_test

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// goodModule breaks no rule. It is what every case of TestPolicyCatches starts
// from.
func goodModule() map[string]string {
	return map[string]string{
		"go.mod":  "module example.org/m\n\ngo 1.26\n",
		"go.work": "go 1.26.7\n\nuse (\n\t.\n\t./backend/redislock\n\t./examples\n\t./observe\n)\n",
		"backend/redislock/go.mod": `module example.org/m/backend/redislock

go 1.26.0

require (
	example.org/m v0.0.0
	github.com/redis/rueidis v1.0.79
	golang.org/x/sys v0.49.0 // indirect
)

replace example.org/m => ../..
`,
		"examples/go.mod": `module example.org/m/examples

go 1.26.7

require example.org/m/backend/redislock v0.0.0

require (
	golang.org/x/sys v0.49.0
	example.org/m v0.0.0 // indirect
)

replace (
	example.org/m => ..
	example.org/m/backend/redislock => ../backend/redislock
)
`,
		"ARCHITECTURE.md": "# Architecture\n\n## Layers\n\nDown.\n\n```\n" + goodLayers + "```\n",
		dependenciesPage:  "| `redis/rueidis` | `backend/redislock` |\n| `golang.org/x/sys`, `spf13/cobra` | `examples/shop`, `observe`, `.` |\n",
		"observe/go.mod":  "module example.org/m/observe\n\ngo 1.26\n",
		"root.go":         "// Package m is a module.\npackage m\n\nimport \"example.org/m/backend\"\n\n// Kind of backend.\nconst Kind = backend.Kind\n",
		"fence/fence.go":  "// Package fence is a package.\npackage fence\n",
		"backend/backend.go": `// Package backend is a package.
package backend

import (
	_ "embed"
	"errors"
	"fmt"

	"example.org/m/fence"
)

// The kinds.
var (
	ErrOne = errors.New("one")
	errTwo = fmt.Errorf("two: %w", ErrOne)
	ErrTwo = fence.ErrTwo
)

//go:embed script.lua
var script string

var _ B = T{}

// B has methods:
//
//	b.Do()
type B interface {
	// Do does (nothing.)
	Do()
	undone()
}

// T is a type. Is it?
type T struct{ fence.Token }

// Do does nothing!
func (T) Do() {}

func (T) undone() {}

type hidden struct{}

func (hidden) Do() {}

// The kinds of kinds.
const (
	Kind  = 1 // no full stop is needed here
	Other = 2
)
`,
		"backend/backendtest/suite.go": "// Package backendtest is a package.\npackage backendtest\n",
		"backend/redislock/doc.go": `// Package redislock is a package.
//
// # Guarantees
//
// # How it works
//
// # Requires
//
// # URL
//
// # When the lock is lost
//
// # Do not use when
//
// Never.
package redislock
`,
		"backend/redislock/errors.go":         "package redislock\n\nimport \"github.com/redis/rueidis\"\n\nvar _ = rueidis.Nil\n",
		"backend/redislock/redislock.go":      "package redislock\n\nimport _ \"example.org/m/backend\"\n",
		"backend/redislock/example_test.go":   "package redislock_test\n",
		"backend/redislock/redislock_test.go": "package redislock_test\n\nimport (\n\t\"time\"\n\t_ \"example.org/m/backend/backendtest\"\n)\n\nvar global int\n\nfunc Sleep() { time.Sleep(1) }\n",
		"internal/cli/cli.go":                 "// Package cli is a package.\npackage cli\n\nimport _ \"example.org/m/backend/redislock\"\n",
		"cmd/holdfast/main.go":                "// Command holdfast is a command.\npackage main\n\nimport _ \"example.org/m/internal/cli\"\n",
		"elector/elector.go":                  "// Package elector is a package.\npackage elector\n\nimport _ \"example.org/m\"\n",
		"examples/README.md":                  "| [shop](shop) | a shop |\n",
		"examples/shop/README.md":             "# A shop\n\n    go run ./examples/shop --demo\n    go test ./examples/shop\n",
		"examples/shop/main.go":               "// Command shop is an example.\npackage main\n\nimport (\n\t_ \"example.org/m/backend/redislock\"\n\t_ \"example.org/m/examples/internal/web\"\n)\n",
		"examples/shop/shop_test.go":          "package main_test\n",
		"examples/internal/web/web.go":        "// Package web is what examples share.\npackage web\n",
		"tools/go.mod":                        "module example.org/m/tools\n",
		"tools/tools.go":                      "package tools\n\nfunc init() {}\n",
		"backend/testdata/broken.go":          "this is not Go",
	}
}

// goodLayers is the picture of goodModule in ARCHITECTURE.md.
const goodLayers = `tests      backend/backendtest
programs   cmd/holdfast  examples/*

commands   internal/cli  elector
           examples/internal/*
stores     backend/*lock
client     holdfast
contract   backend
basics     fence
`

func parseTexts(t *testing.T, texts map[string]string) *moduleSources {
	t.Helper()
	fsys := make(fstest.MapFS)
	for name, text := range texts {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	m, err := parseModule(fsys)
	if err != nil {
		t.Fatal(err)
	}
	m.list = func([]string) ([]byte, error) {
		return []byte(`{"ImportPath": "github.com/redis/rueidis", "Imports": ["net"]}
			{"ImportPath": "net"}
			{"ImportPath": "example.net/innocent", "Imports": ["example.net/between"]}
			{"ImportPath": "example.net/between", "Imports": ["go.etcd.io/etcd/client/v3"]}
			{"ImportPath": "example.net/tested", "Imports": ["testing/fstest"]}
			{"ImportPath": "go.etcd.io/etcd/client/v3"}
			{"ImportPath": "google.golang.org/grpc"}`), nil
	}
	return m
}

func TestPolicyAcceptsWhatIsGood(t *testing.T) {
	t.Parallel()
	m := parseTexts(t, goodModule())
	for _, r := range policyRules() {
		if faults := r.check(m); len(faults) > 0 {
			t.Errorf("%s: %s", r.name, strings.Join(faults, "\n"))
		}
	}
}

// policyCase is a file that breaks a rule.
type policyCase struct {
	rule  string
	name  string // of the file
	text  string // empty: the file is removed
	fault string // the rule's message, or a part of it
}

// TestPolicyCatches gives each rule files that break it. The fault must be found by that rule and
// by no other. The exception is an import that its folder may not have, which may also lead to a
// layer that is no lower, or from a folder that is in none.
func TestPolicyCatches(t *testing.T) {
	t.Parallel()
	const doc = "// Package x is a package.\npackage x\n\n"
	cases := []policyCase{
		{"imports", "fence/a.go", "package fence\nimport _ \"example.org/m/backend\"\n", "fence/a.go:2: fence imports backend; it may import nothing of ours"},
		{"imports", "fence/sqlfence/a.go", doc + "import _ \"example.org/m/backend\"\n", "fence/sqlfence imports backend; it may import fence"},
		{"imports", "backend/a.go", "package backend\nimport _ \"example.org/m\"\n", "backend imports .; it may import fence"},
		{"imports", "backend/redislock/a.go", "package redislock\nimport _ \"example.org/m\"\n", "backend/redislock imports ."},
		{"imports", "backend/redislock/a.go", "package redislock\nimport _ \"example.org/m/backend/zklock\"\n", "backend/redislock imports backend/zklock"},
		{"imports", "a.go", "package m\nimport _ \"example.org/m/open\"\n", ". imports open"},
		{"imports", "verify/a.go", doc + "import _ \"example.org/m/backend/memlock\"\n", "verify imports backend/memlock"},
		{"imports", "quite/new/a.go", doc + "import _ \"example.org/m/backend/memlock\"\n", "quite/new imports backend/memlock"},
		{"imports", "observe/prom/a.go", doc + "import _ \"example.org/m/server\"\n", "observe/prom imports server"},
		{"imports", "examples/shop/a.go", "package main\nimport _ \"example.org/m/internal/wire\"\n", "examples/shop imports internal/wire"},
		{"imports", "examples/internal/web/a.go", "package web\nimport _ \"example.org/m/examples/shop\"\n", "examples/internal/web imports examples/shop"},
		{"layers", "ARCHITECTURE.md", "", "ARCHITECTURE.md has no picture of the layers"},
		{"layers", "ARCHITECTURE.md", "\n## Layers\n\n```\n  backend\n```\n", "ARCHITECTURE.md has no picture of the layers"},
		{"layers", "ARCHITECTURE.md", "\n## Layers\n\n```\n" + goodLayers + "lowest  internal/old\n```\n", "ARCHITECTURE.md: there is no package internal/old"},
		{"layers", "ARCHITECTURE.md", "\n## Layers\n\n```\n" + goodLayers + "lowest  fence\n```\n", "ARCHITECTURE.md: fence is there twice"},
		{"layers", "internal/quite/new/a.go", doc, "ARCHITECTURE.md: internal/quite/new is in no layer"},
		{"layers", "internal/cli/a.go", "package cli\nimport _ \"example.org/m/cmd/holdfast\"\n", "internal/cli/a.go:2: internal/cli (commands) imports cmd/holdfast (programs), which is not below it"},
		{"layers", "internal/cli/a.go", "package cli\nimport _ \"example.org/m/elector\"\n", "internal/cli (commands) imports elector (commands), which is not below it"},
		{"example-files", "examples/shop/README.md", "", "examples/shop: there is no README.md"},
		{"example-files", "examples/shop/README.md", "# A shop\n\n    go test ./examples/shop\n", `examples/shop/README.md does not say "go run ./examples/shop"`},
		{"example-files", "examples/shop/README.md", "# A shop\n\n    go run ./examples/shop\n", `examples/shop/README.md does not say "./examples/shop" after go test`},
		{"example-files", "examples/shop/shop_test.go", "", "examples/shop has no tests"},
		{"example-files", "examples/README.md", "# Examples\n", "examples/README.md has no row [shop](shop)"},
		{"one-client", "backend/redislock/a.go", "package redislock\nimport _ \"github.com/gomodule/redigo\"\n", "backend/redislock imports from github.com/gomodule and github.com/redis"},
		{"weight", "backend/redislock/a.go", "package redislock\nimport _ \"golang.org/x/net\"\nimport _ \"google.golang.org/grpc\"\n", "backend/redislock compiles google.golang.org/grpc: example.org/m/backend/redislock -> google.golang.org/grpc"},
		{"weight", "elector/a.go", "package elector\nimport _ \"example.net/innocent\"\n", "elector compiles go.etcd.io/etcd/client/v3: example.org/m/elector -> example.net/innocent -> example.net/between -> go.etcd.io/etcd/client/v3"},
		{"modules", "go.mod", "module example.org/m\n\ngo 1.26.1\n", "go.mod: go 1.26.1, want 1.26"},
		{"modules", "go.mod", "module example.org/m\n\ngo 1.26\n\nrequire golang.org/x/sys v0.49.0\n", "go.mod: it requires golang.org/x/sys; the root requires nothing"},
		{"modules", "go.sum", "\n", "there is a go.sum in the root"},
		{"modules", "new/go.mod", "module example.org/m/new\n\ngo 1.26\n", "go.work uses [. backend/redislock examples observe], want [. backend/redislock examples new observe]"},
		{"modules", "go.work", "use (\n\t.\n\t./backend/redislock\n\t./examples\n)\n", "go.work uses [. backend/redislock examples], want"},
		{"modules", "observe/go.mod", "module example.org/m/observe\n\ngo 1.25\n", "observe/go.mod: go 1.25, want 1.26"},
		{"modules", "observe/go.mod", "module example.org/m/observe\n\ngo 1.26\nrequire github.com/spf13/cobra v1.0.0\n", "observe/go.mod: it requires github.com/spf13/cobra; besides our own it may require github.com/prometheus/client_golang"},
		{"modules", "observe/go.mod", "module example.org/m/observe\n\ngo 1.26\nrequire golang.org/x/sys v0.48.0 // indirect\n", "observe/go.mod: golang.org/x/sys v0.48.0, and v0.49.0 in examples"},
		{"modules", "observe/go.mod", "module example.org/m/observe\n\ngo 1.26\nrequire example.org/m v0.0.0\n", "observe/go.mod: it replaces map[], want map[example.org/m:..]"},
		{"modules", "observe/go.mod", "module example.org/m/observe\n\ngo 1.26\nrequire example.org/m v0.0.0\nreplace example.org/m => ../..\n", "observe/go.mod: it replaces map[example.org/m:../..], want"},
		{"modules", "observe/go.mod", "module example.org/m/observe\n\ngo 1.26\nrequire example.org/m v0.1.0\nreplace example.org/m => ..\n", "observe/go.mod: example.org/m v0.1.0, want v0.0.0"},
		{"modules", "observe/go.mod", "module example.org/m/observe\n\ngo 1.26\nrequire example.org/m/old v0.0.0\n", "observe/go.mod: there is no example.org/m/old"},
		{"modules", "observe/go.mod", "module example.org/m/observe\n\ngo 1.26\nrequire example.org/m/observe v0.0.0\nreplace example.org/m/observe => .\n", "observe/go.mod: it requires itself"},
		{"dependencies", "ARCHITECTURE.md", goodModule()["ARCHITECTURE.md"] + strings.Repeat("\n", 150), "ARCHITECTURE.md: 167 lines, more than 150"},
		{"dependencies", dependenciesPage, "| `redis/rueidis` | `backend/redislock` |\n", "docs/dependencies.md: no row has"},
		{"dependencies", dependenciesPage, "| `redis/rueidis` | `backend/redislock` |\n| `golang.org/x/sys` | `observe` |\n", "docs/dependencies.md: no row has `golang.org/x/sys` and `examples`"},
		{"dependencies", dependenciesPage, "| `redis/rueidis/more` | `backend/redislock` |\n| `golang.org/x/sys` | `examples/shop` |\n", "docs/dependencies.md: no row has `redis/rueidis` and `backend/redislock`"},
		{"command", "internal/cli/a.go", "package cli\nimport _ \"testing\"\n", "cmd/holdfast compiles testing: example.org/m/cmd/holdfast -> example.org/m/internal/cli -> testing"},
		{"command", "internal/cli/a.go", "package cli\nimport _ \"example.org/m/internal/testserver\"\n", "cmd/holdfast compiles example.org/m/internal/testserver: "},
		{"command", "internal/cli/a.go", "package cli\nimport _ \"example.net/tested\"\n", "-> example.net/tested -> testing/fstest"},
		{"no-init", "a.go", "package m\nfunc init() {}\n", "a.go:2: func init"},
		{"no-globals", "a.go", "package m\nvar cache = map[string]int{}\n", "a.go:2: var cache"},
		{"no-globals", "a.go", "package m\nvar _, count = 1, 2\n", "var count"},
		{"no-globals", "a.go", "package m\nvar errLast error\n", "var errLast"},
		{"no-globals", "a.go", "package m\nvar last string\n", "var last"},
		{"no-globals", "a.go", "package m\n\n//nolint:gochecknoglobals // the linker sets it\nvar last []string\n", "var last"},
		{"no-globals", "a.go", "package m\nvar errCount = 1\n", "var errCount"},
		{"package-doc", "fence/fence.go", "package fence\n", "fence: no file has a comment above its package clause"},
		{"package-doc", "fence/a.go", "// Package fence is a fence.\npackage fence\n", "more than one file has a comment above its package clause: fence/a.go, fence/fence.go"},
		{"doc-comments", "a.go", "package m\nfunc F() {}\n", "a.go:2: F: it has no comment"},
		{"doc-comments", "a.go", "package m\n// F does\nfunc F() {}\n", `F: its comment ends with "F does", not with a full stop`},
		{"doc-comments", "a.go", "package m\n//go:noinline\nfunc F() {}\n", "F: it has no comment"},
		{"doc-comments", "a.go", "package m\n// T is a type.\ntype T[K any] struct{ _ K }\nfunc (t *T[K]) M() {}\n", "T.M: it has no comment"},
		{"doc-comments", "a.go", "package m\n// T is a type.\ntype T interface{\n// N is a method.\nN()\nM() }\n", "T.M: it has no comment"},
		{"doc-comments", "a.go", "package m\ntype (\n\t// T is a type.\n\tT int\n\tU int\n)\n", "U: it has no comment"},
		{"doc-comments", "a.go", "package m\nconst C = 1 // a constant.\n", "C: it has no comment"},
		{"file-size", "a_test.go", "package m\n" + strings.Repeat("\n", 600), "a_test.go: 601 lines"},
		{"backend-files", "backend/redislock/errors.go", "", "backend/redislock: there is no errors.go"},
		{"backend-files", "backend/redislock/example_test.go", "", "there is no example_test.go"},
		{"backend-files", "backend/redislock/redislock.go", "", "there is no redislock.go"},
		{"backend-files", "backend/redislock/redislock_test.go", "", "no test runs the suite"},
		{"backend-files", "backend/redislock/doc.go", strings.Replace(goodModule()["backend/redislock/doc.go"], "# URL", "# Url", 1), `backend/redislock/doc.go: there is no heading "# URL"`},
		{"no-sleep", "a.go", "package m\nimport \"time\"\nfunc f() { time.Sleep(1) }\n", "a.go:3: time.Sleep"},
		{"no-sleep", "a.go", "package m\nimport clock \"time\"\nvar _ = clock.Sleep\n", "a.go:3: time.Sleep"},
	}
	for _, c := range cases {
		t.Run(c.rule+"/"+c.name, func(t *testing.T) {
			t.Parallel()
			texts := goodModule()
			texts[c.name] = c.text
			if c.text == "" {
				delete(texts, c.name)
			}
			m := parseTexts(t, texts)
			for _, r := range policyRules() {
				faults := r.check(m)
				hit := slices.ContainsFunc(faults, func(f string) bool { return strings.Contains(f, c.fault) })
				switch {
				case r.name == c.rule && (!hit || len(faults) != 1):
					t.Errorf("%s found %q, want one fault with %q", r.name, faults, c.fault)
				case r.name == "layers" && c.rule == "imports":
				case r.name != c.rule && len(faults) > 0:
					t.Errorf("%s found %q", r.name, faults)
				}
			}
		})
	}
	for _, r := range policyRules() {
		if !slices.ContainsFunc(cases, func(c policyCase) bool { return c.rule == r.name }) {
			t.Errorf("rule %s has no case", r.name)
		}
	}
}
