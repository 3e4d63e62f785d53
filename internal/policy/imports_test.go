package policy_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// importRule lists what a folder may import of this module. The first rule whose pattern matches
// applies to the folder. A pattern is one of path.Match, or ends in "/..." for everything below.
// Tests may import anything.
type importRule struct {
	folder string
	allow  []string
}

func importRules() []importRule {
	public := []string{".", "fence", "fence/...", "backend", "backend/*lock", "backend/*lock/...", "open", "elector", "rowlock", "observe", "observe/...", "server", "server/embedded"}
	return []importRule{
		{"fence", nil},
		{"fence/...", []string{"fence"}},
		{"dashboard", nil},
		{"backend", []string{"fence"}},
		{"backend/backendtest", []string{"backend", "fence", "internal/retry"}},
		{"backend/redlock", []string{"backend", "fence", "internal/conns", "internal/lockstate", "internal/redisprogram", "internal/retry", "internal/storeerr", "internal/storeurl"}},
		{"backend/redislock", []string{"backend", "fence", "internal/finals", "internal/redisprogram", "internal/retry", "internal/storeerr", "internal/storeurl"}},
		{"backend/redislock/goredis", []string{"backend", "backend/redislock", "internal/conns", "internal/redisprogram", "internal/speaks"}},
		{"backend/remotelock", []string{"backend", "fence", "internal/conns", "internal/remoteprobe", "internal/remoteurl", "internal/retry", "internal/storeerr", "internal/wire"}},
		{"backend/pglock", []string{"backend", "fence", "internal/sqllease", "internal/connlease", "internal/conns", "internal/retry", "internal/storeerr", "internal/storeurl"}},
		{"backend/mysqllock", []string{"backend", "fence", "internal/sqllease", "internal/connlease", "internal/conns", "internal/retry", "internal/storeerr", "internal/storeurl"}},
		{"backend/*lock", []string{"backend", "fence", "internal/conns", "internal/finals", "internal/lockstate", "internal/retry", "internal/seqlock", "internal/sessions", "internal/speaks", "internal/storeerr", "internal/storeurl", "internal/waiters"}},
		{".", []string{"backend", "fence", "internal/acquire", "internal/clock", "internal/liveness"}},
		{"elector", []string{".", "fence", "internal/retry"}},
		{"rowlock", []string{"fence"}},
		{"observe/...", []string{".", "backend", "fence", "observe"}},
		{"server", []string{".", "backend", "fence", "internal/acquire", "internal/clock", "internal/liveness", "internal/retry", "internal/wire", "observe", "dashboard"}},
		{"server/embedded", []string{"backend", "fence", "backend/etcdlock", "internal/certs", "internal/ownfile"}},
		{"server/access", []string{"backend", "internal/reload", "server"}},
		{"open", []string{"backend", "fence", "backend/*lock", "server/embedded"}},
		{"cmd/...", []string{"internal/cli"}},
		{"internal/cli", []string{"..."}},
		{"internal/certs", []string{"internal/ownfile"}},
		{"internal/chaos", nil},
		{"internal/acquire", []string{"backend", "internal/clock", "internal/liveness", "internal/retry"}},
		{"internal/clock", nil},
		{"internal/conns", nil},
		{"internal/reload", nil},
		{"internal/redisprogram", []string{"internal/speaks"}},
		{"internal/retry", nil},
		{"internal/speaks", nil},
		{"internal/storeerr", []string{"backend", "internal/speaks"}},
		{"internal/liveness", []string{"backend", "internal/clock"}},
		{"internal/ownfile", nil},
		{"internal/remoteurl", []string{"backend", "internal/storeurl"}},
		{"internal/shim", nil},
		{"internal/launch/...", []string{"internal/shim"}},
		{"internal/testserver", []string{"internal/certs", "internal/launch", "internal/shim"}},
		{"internal/connlease", []string{"backend", "fence", "internal/finals", "internal/lockstate", "internal/retry", "internal/storeerr"}},
		{"internal/leasetest", []string{"backend", "backend/backendtest", "fence"}},
		{"internal/lockstate", []string{"backend", "fence"}},
		{"internal/seqlock", []string{"backend", "fence", "internal/lockstate", "internal/sessions"}},
		{"internal/sessions", []string{"backend", "internal/finals"}},
		{"internal/sqllease", []string{"backend", "fence", "internal/lockstate", "internal/retry", "internal/waiters"}},
		{"internal/waiters", []string{"backend", "internal/finals", "internal/lockstate"}},
		{"internal/...", []string{"backend", "fence", "internal/wire"}},
		{"examples/...", append(public, "examples/internal/...")},
		{"verify", []string{"verify/history"}},
		{"verify/history", nil},
		{"verify/runner", []string{".", "backend", "fence", "open", "internal/chaos", "internal/launch", "internal/retry", "internal/shim", "internal/storeurl", "verify/history"}},
		{"bench", []string{".", "backend", "fence"}},
		{"bench/compare", []string{"bench"}},
		{"bench/engines", append(public, "bench", "internal/certs", "internal/launch", "internal/storeurl")},
		{"bench/peers", []string{"backend", "backend/k8slock", "backend/redislock", "backend/redislock/goredis", "bench", "bench/engines", "internal/cli"}},
		// whatever comes: the API and the contract, and no backend by name.
		{"...", []string{".", "backend", "backend/backendtest", "fence", "open", "internal/chaos", "internal/wire"}},
	}
}

// folderMatches reports whether a folder falls under a pattern of importRule.
func folderMatches(pattern, folder string) bool {
	if pattern == "..." {
		return true
	}
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

func checkImports(m *moduleSources) []string {
	rules := importRules()
	var faults []string
	for s := range m.code() {
		n := slices.IndexFunc(rules, func(r importRule) bool { return folderMatches(r.folder, s.folder) })
		rule := rules[n] // the last one matches everything
		for p, spec := range s.imports() {
			folder, ok := m.own(p)
			if !ok || strings.HasPrefix(folder, s.folder+"/internal/") {
				continue
			}
			if !slices.ContainsFunc(rule.allow, func(pattern string) bool { return folderMatches(pattern, folder) }) {
				may := cmp.Or(strings.Join(rule.allow, ", "), "nothing of ours")
				faults = append(faults, fmt.Sprintf("%s: %s imports %s; it may import %s", m.at(spec), s.folder, folder, may))
			}
		}
	}
	slices.Sort(faults)
	return faults
}

// family returns the maker of a package that is neither ours nor the standard library's:
// "github.com/redis", "k8s.io". Packages that come with whatever uses them have none: golang.org/x,
// and gRPC, whose status codes are the errors of etcd's client.
func (m *moduleSources) family(importPath string) string {
	host, rest, _ := strings.Cut(importPath, "/")
	if _, ours := m.own(importPath); ours || !strings.Contains(host, ".") || importPath == "C" {
		return ""
	}
	switch {
	case host == "golang.org" || strings.HasPrefix(importPath, "google.golang.org/grpc"):
		return ""
	case host == "github.com":
		owner, _, _ := strings.Cut(rest, "/")
		return host + "/" + owner
	default:
		return host
	}
}

func checkOneClient(m *moduleSources) []string {
	families := make(map[string]map[string]bool)
	for s := range m.code() {
		if ok, _ := path.Match("backend/*lock", s.folder); !ok {
			continue
		}
		for p := range s.imports() {
			if f := m.family(p); f != "" {
				if families[s.folder] == nil {
					families[s.folder] = make(map[string]bool)
				}
				families[s.folder][f] = true
			}
		}
	}
	var faults []string
	for _, folder := range slices.Sorted(maps.Keys(families)) {
		if set := families[folder]; len(set) > 1 {
			faults = append(faults, fmt.Sprintf("%s imports from %s", folder, strings.Join(slices.Sorted(maps.Keys(set)), " and ")))
		}
	}
	return faults
}

// weights are the client libraries of the stores, each with the folders that may bring it into a
// program.
func weights() map[string][]string {
	etcd := []string{"backend/etcdlock", "server/embedded", "server/internal/etcdmain"}
	return map[string][]string{
		"go.etcd.io/":                    etcd,
		"google.golang.org/grpc":         etcd,
		"k8s.io/client-go":               {"backend/k8slock"},
		"github.com/redis/rueidis":       {"backend/redislock", "backend/redislock/goredis", "backend/redlock", "fence/redisfence"},
		"github.com/redis/go-redis/":     {"backend/redislock/goredis"},
		"github.com/go-zookeeper/":       {"backend/zklock"},
		"github.com/hashicorp/consul/":   {"backend/consullock"},
		"github.com/jackc/":              {"backend/pglock"},
		"github.com/go-sql-driver/mysql": {"backend/mysqllock"},
		"modernc.org/":                   {"backend/sqlitelock"},
	}
}

// weighed are the packages that a program imports for a part of the module. The others are programs
// themselves, or know every backend.
func weighed(folder string) bool {
	return !slices.ContainsFunc([]string{"open", "internal/...", "cmd/...", "examples/...", "verify", "verify/...", "bench", "bench/..."},
		func(pattern string) bool { return folderMatches(pattern, folder) })
}

func checkWeight(m *moduleSources) []string {
	graph := m.importGraph()
	if err := addForeign(m, graph); err != nil {
		return []string{err.Error()}
	}
	var faults []string
	for _, folder := range m.folders() {
		if !weighed(folder) {
			continue
		}
		way := reach(graph, m.importPath(folder))
		for prefix, carriers := range weights() {
			if slices.ContainsFunc(carriers, func(c string) bool { return folderMatches(c, folder) }) {
				continue
			}
			for _, p := range slices.Sorted(maps.Keys(way)) {
				if strings.HasPrefix(p, prefix) {
					faults = append(faults, fmt.Sprintf("%s compiles %s: %s", folder, p, trail(way, p)))
					break
				}
			}
		}
	}
	slices.Sort(faults)
	return faults
}

// checkCommand finds what is for tests in the command.
func checkCommand(m *moduleSources) []string {
	graph := m.importGraph()
	if err := addForeign(m, graph); err != nil {
		return []string{err.Error()}
	}
	const command = "cmd/holdfast"
	way := reach(graph, m.importPath(command))
	var faults []string
	for _, p := range slices.Sorted(maps.Keys(way)) {
		folder, _ := m.own(p)
		ours := slices.ContainsFunc([]string{"testserver", "leasetest", "backendtest"}, func(name string) bool { return strings.Contains(folder, name) })
		if ours || p == "testing" || strings.HasPrefix(p, "testing/") {
			faults = append(faults, fmt.Sprintf("%s compiles %s: %s", command, p, trail(way, p)))
		}
	}
	return faults
}

func (m *moduleSources) importPath(folder string) string { return path.Join(m.path, folder) }

// importGraph returns the imports of each package of the module.
func (m *moduleSources) importGraph() map[string][]string {
	graph := make(map[string][]string)
	for s := range m.code() {
		p := m.importPath(s.folder)
		graph[p] = append(graph[p], slices.Sorted(maps.Keys(s.imports()))...)
	}
	return graph
}

// addForeign adds the imports of foreign packages, which the go command knows.
func addForeign(m *moduleSources, graph map[string][]string) error {
	foreign := make(map[string]bool)
	for _, imports := range graph {
		for _, p := range imports {
			host, _, _ := strings.Cut(p, "/")
			if _, ours := m.own(p); !ours && strings.Contains(host, ".") {
				foreign[p] = true
			}
		}
	}
	if len(foreign) == 0 {
		return nil
	}
	out, err := goList(slices.Sorted(maps.Keys(foreign)))
	if err != nil {
		return err
	}
	return readList(out, graph)
}

// goList asks the go command for foreign packages and everything that they compile. Its answer can
// change only with the files of the modules, which parseModule reads, so that the test cache knows of
// them.
func goList(packages []string) ([]byte, error) {
	args := append([]string{"list", "-mod=readonly", "-e", "-deps", "-json=ImportPath,Imports,Error"}, packages...)
	var stderr bytes.Buffer
	cmd := exec.CommandContext(context.Background(), "go", args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, stderr.String())
	}
	return out, nil
}

// readList adds packages as go list prints them.
func readList(out []byte, graph map[string][]string) error {
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath string
			Imports    []string
			Error      *struct{ Err string }
		}
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading what go list says: %w", err)
		}
		if p.Error != nil {
			return fmt.Errorf("go list: %s: %s", p.ImportPath, p.Error.Err)
		}
		graph[p.ImportPath] = p.Imports
	}
}

// reach returns every package that from compiles, each with the package that imports it on a
// shortest path.
func reach(graph map[string][]string, from string) map[string]string {
	way := map[string]string{from: ""}
	for next := []string{from}; len(next) > 0; next = next[1:] {
		for _, p := range graph[next[0]] {
			if _, seen := way[p]; !seen {
				way[p] = next[0]
				next = append(next, p)
			}
		}
	}
	return way
}

// trail returns the path to p in words.
func trail(way map[string]string, p string) string {
	steps := []string{p}
	for p = way[p]; p != ""; p = way[p] {
		steps = append(steps, p)
	}
	slices.Reverse(steps)
	return strings.Join(steps, " -> ")
}
