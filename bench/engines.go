package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/bench"
	"github.com/holdfast-io/holdfast/internal/testkit/launch"
	"github.com/holdfast-io/holdfast/open"
)

// ours is our client on the backend that the URL names.
func ours() bench.Contender { return bench.Ours(connect) }

func connect(ctx context.Context, url string) (backend.Backend, error) {
	return open.URL(ctx, url, open.Options{})
}

// openEngine connects to the engine that a URL of package open names. A store whose bare commands are not
// measured has our client alone. The caller closes the engine.
//
// Errors: *backend.InvalidError for an invalid URL; *backend.UnavailableError if no server answers.
func openEngine(ctx context.Context, url string) (*bench.Engine, error) {
	scheme, _, _ := strings.Cut(url, ":")
	known := map[string]func(context.Context, string) (*bench.Engine, error){
		"redis": redisEngine, "rediss": redisEngine, "redis+unix": redisEngine, "redlock": redlockEngine,
		"etcd": etcdEngine, "zookeeper": zooKeeperEngine, "consul": consulEngine,
		"postgres": postgresEngine, "postgresql": postgresEngine, "postgres+advisory": advisoryEngine,
		"mysql": mysqlEngine, "sqlite": sqliteEngine, "kubernetes": kubernetesEngine,
	}
	if engine, ok := known[scheme]; ok {
		return engine(ctx, url)
	}
	b, err := connect(ctx, url)
	if err != nil {
		return nil, err
	}
	if err := b.Close(); err != nil {
		return nil, err
	}
	return &bench.Engine{Name: scheme, URL: url, Contenders: []bench.Contender{ours()}}, nil
}

// memoryEngine has our client without a server: it measures the cost of the client itself.
func memoryEngine() *bench.Engine {
	store := memlock.New()
	return &bench.Engine{
		Name: "memory", URL: "memory://", Close: store.Close,
		Contenders: []bench.Contender{bench.Ours(func(context.Context, string) (backend.Backend, error) {
			return bench.Shared{Backend: store}, nil
		})},
	}
}

// local is a server that can be started here.
type local struct {
	engine     string
	kind       string              // of package launch; empty: as engine
	program    string              // the program that it needs; empty: none
	args       []string            // more of them for the servers
	parameters string              // of the URL
	built      map[string][]string // the programs that the repository builds, each with its arguments
	hung       int                 // how many servers hang: they accept connections but do not answer
}

// locals returns the servers that can be started here.
func locals() []local {
	// Redis writes nothing to the disk: the protocol is measured, not the disk. The servers are new,
	// so nothing can have been granted before they started.
	memory, fresh := []string{"--appendonly", "no"}, "?quarantine=off"
	return []local{
		{engine: "memory"},
		{engine: "sqlite"},
		{engine: "redis", program: "redis-server", args: memory, parameters: fresh},
		{engine: "redlock", program: "redis-server", args: memory, parameters: fresh},
		{engine: "redlock-hung", program: "redis-server", kind: "redlock", args: memory, parameters: fresh, hung: 1},
		{engine: "etcd", built: map[string][]string{"etcd": nil}},
		{engine: "zookeeper", program: "java"},
		{engine: "postgres", program: "initdb"},
		{engine: "postgres+advisory", program: "initdb"},
		{engine: "mysql", program: "mariadb-install-db"},
		{engine: "mysql+getlock", program: "mariadb-install-db"},
		{engine: "consul", built: map[string][]string{"consul": nil}},
		// Its etcd does not sync: the API server is measured, not the disk.
		{engine: "kubernetes", built: map[string][]string{"kube-apiserver": nil, "etcd": {"--unsafe-no-fsync"}}},
		{engine: "holdfast", built: map[string][]string{"holdfast": nil}},
	}
}

// localEngines starts a server of each of the named engines, or of each whose program is installed, on free
// ports of the loopback interface, with data that is removed at the end. Closing an engine ends its server.
//
// Errors: *backend.InvalidError for an unknown engine; a named server whose program is not there; a server
// that does not start.
func localEngines(ctx context.Context, names []string, missing func(engine string, err error)) ([]*bench.Engine, error) {
	known := locals()
	for _, name := range names {
		if !slices.ContainsFunc(known, func(l local) bool { return l.engine == name }) {
			return nil, &backend.InvalidError{Field: "engine", Value: fmt.Sprintf("%q", name), Bound: "one of those that are named without -engine"}
		}
	}
	var all []*bench.Engine
	for _, l := range known {
		if len(names) > 0 && !slices.Contains(names, l.engine) {
			continue
		}
		e, err := l.open(ctx)
		if len(names) == 0 && errors.Is(err, exec.ErrNotFound) {
			missing(l.engine, err)
			continue
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", l.engine, err), closeEngines(all))
		}
		all = append(all, e)
	}
	return all, nil
}

// closeEngines closes all of them.
func closeEngines(all []*bench.Engine) error {
	errs := make([]error, 0, len(all))
	for _, e := range all {
		if e.Close != nil {
			errs = append(errs, e.Close())
		}
	}
	return errors.Join(errs...)
}

// open starts the server, and connects to it.
func (l local) open(ctx context.Context) (*bench.Engine, error) {
	if l.engine == "memory" {
		return memoryEngine(), nil
	}
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return nil, fmt.Errorf("a folder for a server: %w", err)
	}
	remove := func() error { return os.RemoveAll(dir) }
	url, cpu, stop, err := l.start(ctx, dir)
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	e, err := openEngine(ctx, url)
	if err != nil {
		return nil, errors.Join(err, stop(), remove())
	}
	if l.hung > 0 {
		// Each call of redsync waits for the server that hangs, so a pair takes ten seconds, which is too slow to
		// measure how long its waiters wait. Each call has a connection, so that the calls do not wait for each other too.
		const most = 256
		e.Contenders[len(e.Contenders)-1] = redsyncMany(0, most)
	}
	e.Name, e.CPU = l.engine, cpu
	client := *e
	e.Close = func() error { return errors.Join(closeEngines([]*bench.Engine{&client}), stop(), remove()) }
	return e, nil
}

// start returns the URL, the CPU time that the servers have used so far, and the function that ends them.
func (l local) start(ctx context.Context, dir string) (string, func() time.Duration, func() error, error) {
	if l.engine == "sqlite" {
		return "sqlite://" + filepath.Join(dir, "locks.db"), nil, func() error { return nil }, nil
	}
	programs := maps.Clone(l.built)
	for name, args := range programs {
		path, err := launch.Built(ctx, name)
		if err != nil {
			return "", nil, nil, err
		}
		programs[name] = append([]string{path}, args...)
	}
	o := launch.Options{Dir: dir, Programs: programs, Args: l.args}
	if l.program != "" {
		if _, err := o.Program(l.program); err != nil {
			return "", nil, nil, err
		}
	}
	g, err := launch.Kinds()[cmp.Or(l.kind, l.engine)](ctx, o)
	if err != nil {
		return "", nil, nil, err
	}
	err = g.Start(ctx)
	for _, s := range g.Servers[len(g.Servers)-l.hung:] {
		if err == nil {
			err = s.Process().Stop()
		}
	}
	if err != nil {
		return "", nil, nil, errors.Join(err, g.End())
	}
	return g.URL + l.parameters, func() time.Duration {
		var all time.Duration
		for _, s := range g.Servers {
			all += s.Process().CPU()
		}
		return all
	}, g.End, nil
}
