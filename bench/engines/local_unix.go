//go:build unix

package engines

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/internal/certs"
	"github.com/holdfast-io/holdfast/internal/launch"
)

// local is a server that can be started here.
type local struct {
	engine     string
	program    string              // the program that it needs; empty: none
	kind       string              // of package launch; empty: as engine
	args       []string            // more of them for the servers
	parameters string              // of the URL
	built      map[string][]string // the programs that the repository builds, each with its arguments
	programs   map[string][]string // others, that are not in $PATH
	beside     string              // the kind of another server: see bench.Engine.Beside
	hung       int                 // how many servers hang: they accept connections but do not answer
	tls        bool                // for Redis: clients use TLS
	guarded    bool                // for holdfast: with TLS, identity, limits and an audit log
}

// locals returns the servers that can be started here. self is the command holdfast, or empty.
func locals(self string) []local {
	// Redis writes nothing to the disk: the protocol is measured, not the disk. The servers are new,
	// so nothing can have been granted before they started.
	memory, fresh := []string{"--appendonly", "no"}, "?quarantine=off"
	// The etcd of this module is used if its sources are there, and otherwise the installed one.
	etcd := map[string][]string{"etcd": nil}
	all := []local{
		{engine: "sqlite"},
		{engine: "redis", program: "redis-server", args: memory, parameters: fresh},
		{engine: "redis-tls", program: "redis-server", kind: "redis", args: memory, parameters: fresh, tls: true},
		{engine: "redlock", program: "redis-server", args: memory, parameters: fresh},
		{engine: "redlock-hung", program: "redis-server", kind: "redlock", args: memory, parameters: fresh, hung: 1},
		{engine: "etcd", program: "etcd", built: etcd},
		{engine: "zookeeper", program: "java"},
		{engine: "postgres", program: installed("initdb")},
		{engine: "postgres+advisory", program: installed("initdb")},
		{engine: "mysql+getlock", program: "mariadb-install-db"},
		{engine: "mysql", program: "mariadb-install-db"},
		{engine: "consul", program: builder("consul"), built: map[string][]string{"consul": nil}},
		// Its etcd does not sync: the API server is measured, not the disk.
		{engine: "kubernetes", program: builder("kube-apiserver"), built: map[string][]string{"kube-apiserver": nil, "etcd": {"--unsafe-no-fsync"}}},
	}
	if self != "" {
		ours := map[string][]string{"holdfast": {self}}
		all = append(all,
			local{engine: "holdfast", program: self, programs: ours, built: etcd, beside: "etcd"},
			local{engine: "holdfast-guarded", program: self, kind: "holdfast", programs: ours, beside: "holdfast", guarded: true},
		)
	}
	return all
}

// installed returns the path of a program that Debian does not put in $PATH.
func installed(name string) string {
	if argv, err := (launch.Options{}).Program(name); err == nil {
		return argv[0]
	}
	return name
}

// builder returns the script of this repository that builds a server, or the server's name if the
// working folder is not in the repository.
func builder(name string) string {
	root, err := launch.Repository()
	if err != nil {
		return name
	}
	return filepath.Join(root, "scripts", "tool")
}

// start starts a server and returns its URL, and the function that ends it.
func (l local) start(ctx context.Context) (started, func() error, error) {
	if l.engine == "sqlite" {
		dir, end, err := folder()
		return started{url: "sqlite://" + filepath.Join(dir, "locks.db")}, end, err
	}
	switch {
	case l.tls:
		return l.secure(ctx)
	case l.guarded:
		return l.guard(ctx)
	}
	return l.plain(ctx)
}

func (l local) plain(ctx context.Context) (started, func() error, error) {
	programs, err := l.find(ctx)
	if err != nil {
		return started{}, nil, err
	}
	at, end, err := group(ctx, cmp.Or(l.kind, l.engine), launch.Options{Programs: programs, Args: l.args}, l.hung)
	at.url += l.parameters
	if err != nil || l.beside == "" {
		return at, end, err
	}
	beside, endBeside, err := group(ctx, l.beside, launch.Options{Programs: programs}, 0)
	if err != nil {
		return started{}, nil, errors.Join(err, end())
	}
	own := at.cpu
	at.beside, at.cpu = beside.url, func() time.Duration { return own() + beside.cpu() } // they take turns
	return at, func() error { return errors.Join(endBeside(), end()) }, nil
}

// certified returns a folder with certificates, and the function that removes it.
func certified() (string, certs.Files, func() error, error) {
	dir, remove, err := folder()
	if err != nil {
		return "", certs.Files{}, nil, err
	}
	files, err := certs.Loopback(dir)
	if err != nil {
		return "", files, nil, errors.Join(err, remove())
	}
	return dir, files, remove, nil
}

// guardPolicy has limits that the measurements do not reach: counting is what costs.
const guardPolicy = `principals:
  bench: {certificates: [localhost]}
grants:
- {to: [bench], locks: ["*"], verbs: [acquire, read]}
limits:
- {to: [bench], locks: 1000000, waiters: 10000, streams: 1000, connections: 1000, requests: 1000000, bytes: 1000000000}
`

// guard starts our server with TLS and a policy, and beside it one without.
func (l local) guard(ctx context.Context) (started, func() error, error) {
	dir, files, remove, err := certified()
	if err != nil {
		return started{}, nil, err
	}
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(guardPolicy), 0o600); err != nil {
		return started{}, nil, errors.Join(err, remove())
	}
	l.args = append(l.args,
		"--tls-cert", files.ServerCert, "--tls-key", files.ServerKey, "--tls-client-ca", files.CA,
		"--policy", policy)
	at, end, err := l.plain(ctx)
	if err != nil {
		return started{}, nil, errors.Join(err, remove())
	}
	client := url.Values{"ca": {files.CA}, "cert": {files.ClientCert}, "key": {files.ClientKey}}
	at.url = strings.Replace(at.url, "holdfast:", "holdfasts:", 1) + "?" + client.Encode()
	return at, func() error { return errors.Join(end(), remove()) }, nil
}

// secure starts a Redis with a port for TLS.
func (l local) secure(ctx context.Context) (started, func() error, error) {
	_, files, remove, err := certified()
	if err != nil {
		return started{}, nil, err
	}
	addr, err := launch.FreeAddr()
	if err != nil {
		return started{}, nil, errors.Join(err, remove())
	}
	args := slices.Concat(l.args, []string{
		"--tls-port", launch.Port(addr), "--tls-auth-clients", "no",
		"--tls-ca-cert-file", files.CA, "--tls-cert-file", files.ServerCert, "--tls-key-file", files.ServerKey,
	})
	at, end, err := group(ctx, l.kind, launch.Options{Args: args}, 0)
	if err != nil {
		return started{}, nil, errors.Join(err, remove())
	}
	at.url = "rediss://" + addr + l.parameters + "&ca=" + url.QueryEscape(files.CA)
	return at, func() error { return errors.Join(end(), remove()) }, nil
}

// find returns the programs of the servers.
func (l local) find(ctx context.Context) (map[string][]string, error) {
	programs := maps.Clone(l.programs)
	if programs == nil {
		programs = make(map[string][]string)
	}
	for name, args := range l.built {
		path, err := launch.Built(ctx, name)
		if errors.Is(err, launch.ErrNoSource) {
			path, err = installed(name), nil
		}
		if err != nil {
			return nil, err
		}
		programs[name] = append([]string{path}, args...)
	}
	return programs, nil
}

// folder creates a folder, and returns the function that removes it.
func folder() (string, func() error, error) {
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return "", nil, fmt.Errorf("a folder for a server: %w", err)
	}
	return dir, func() error { return os.RemoveAll(dir) }, nil
}

// group starts servers of a kind, of which some hang. It also returns the function that ends them.
func group(ctx context.Context, kind string, o launch.Options, hung int) (started, func() error, error) {
	dir, remove, err := folder()
	if err != nil {
		return started{}, nil, err
	}
	o.Dir = dir
	g, err := launch.Kinds()[kind](ctx, o)
	if err != nil {
		return started{}, nil, errors.Join(err, remove())
	}
	end := func() error { return errors.Join(g.End(), remove()) }
	err = g.Start(ctx)
	for _, s := range g.Servers[len(g.Servers)-hung:] {
		if err == nil {
			err = s.Process().Stop()
		}
	}
	if err != nil {
		return started{}, nil, errors.Join(err, end())
	}
	return started{url: g.URL, cpu: func() time.Duration {
		var all time.Duration
		for _, s := range g.Servers {
			all += s.Process().CPU()
		}
		return all
	}}, end, nil
}
