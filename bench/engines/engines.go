package engines

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/bench"
)

// Open connects to the engine that a URL of package open names. The caller closes it.
//
// Errors: *backend.InvalidError for an invalid URL; *backend.UnavailableError if no server answers.
func Open(ctx context.Context, url string) (*bench.Engine, error) {
	scheme, _, _ := strings.Cut(url, ":")
	switch scheme {
	case "redis", "rediss", "redis+unix":
		return Redis(ctx, url)
	case "redlock":
		return Redlock(ctx, url)
	case "etcd":
		return Etcd(ctx, url)
	case "zookeeper":
		return ZooKeeper(ctx, url)
	case "consul":
		return Consul(ctx, url)
	case "postgres", "postgresql":
		return Postgres(ctx, url)
	case "postgres+advisory":
		return Advisory(ctx, url)
	case "mysql":
		return MySQL(ctx, url)
	case "sqlite":
		return SQLite(ctx, url)
	case "kubernetes":
		return Kubernetes(ctx, url)
	case "memory":
		return Memory(), nil
	default:
		return other(ctx, scheme, url)
	}
}

// other has our client alone, on a backend whose bare commands are not measured.
func other(ctx context.Context, scheme, url string) (*bench.Engine, error) {
	locker, err := openOurs(ctx, bench.Config{URL: url})
	if err != nil {
		return nil, err
	}
	if err := locker.Close(ctx); err != nil {
		return nil, err
	}
	return &bench.Engine{Name: scheme, URL: url, Contenders: []bench.Contender{Ours()}, Close: func() error { return nil }}, nil
}

// Local starts a server of each engine whose program is installed, on free ports of the loopback
// interface, with data that is removed at the end. only names the wanted engines; empty: all. self
// is the path of the command holdfast, which the engine holdfast runs; if it is empty, that engine
// is missing. missing has the engines that are not installed, with the reason. Closing an engine
// ends its server.
//
// Errors: *backend.InvalidError for an unknown engine; an installed server that does not start.
func Local(ctx context.Context, only []string, self string) (all []*bench.Engine, missing []string, _ error) { //nolint:nonamedreturns // two lists
	known := []string{"memory"}
	for _, l := range locals(self) {
		known = append(known, l.engine)
	}
	for _, name := range only {
		if !slices.Contains(known, name) {
			return nil, nil, &backend.InvalidError{Field: "engine", Value: fmt.Sprintf("%q", name), Bound: "one of " + strings.Join(known, ", ")}
		}
	}
	wanted := func(name string) bool { return len(only) == 0 || slices.Contains(only, name) }
	if wanted("memory") {
		all = append(all, Memory())
	}
	for _, l := range locals(self) {
		if !wanted(l.engine) {
			continue
		}
		if _, err := exec.LookPath(l.program); l.program != "" && err != nil {
			missing = append(missing, l.engine+": "+l.program+" is not there")
			continue
		}
		e, err := l.open(ctx)
		if err != nil {
			return nil, nil, errors.Join(err, Close(all))
		}
		all = append(all, e)
	}
	return all, missing, nil
}

// started is a running server.
type started struct {
	url    string
	beside string // see bench.Engine.Beside
	cpu    func() time.Duration
}

func (l local) open(ctx context.Context) (*bench.Engine, error) {
	at, stop, err := l.start(ctx)
	if err != nil {
		return nil, err
	}
	e, err := Open(ctx, at.url)
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	e.Name, e.Local, e.CPU = l.engine, true, at.cpu
	SetBeside(e, at.beside)
	end := e.Close
	e.Close = func() error { return errors.Join(end(), stop()) }
	return e, nil
}

// SetBeside tells the engine of another server that was started with it, or of none. Beside our server
// with TLS and identity that is one without, on which our client is the contender "plain".
func SetBeside(e *bench.Engine, url string) {
	e.Beside = url
	if scheme, _, _ := strings.Cut(url, ":"); scheme != "holdfast" {
		return
	}
	plain := Ours()
	plain.Name, plain.Kind = "plain", bench.KindRaw
	plain.Open = func(ctx context.Context, cfg bench.Config) (bench.Locker, error) {
		cfg.URL = url
		return openOurs(ctx, cfg)
	}
	e.Contenders = append(e.Contenders, plain)
}

// Close closes all of them.
func Close(all []*bench.Engine) error {
	errs := make([]error, 0, len(all))
	for _, e := range all {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}
