//go:build unix

package launch

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Group is what serves one URL.
type Group struct {
	// URL is that of the group as a backend. It has only the parameters without which no client
	// can connect.
	URL     string
	Servers []*Server
	// InTurn: each server needs those before it.
	InTurn bool
}

// Kinds returns the groups that can be started, by name. Every change that a server answered is on
// its disk, or on those of the majority, unless Options.Args say otherwise. Options.Members are those
// of etcd, ZooKeeper and Consul; redlock has five servers; the others have one, and
// Kubernetes an etcd too, without Args.
//
// Errors: programs that are not installed; the errors of the system.
func Kinds() map[string]func(context.Context, Options) (*Group, error) {
	one := func(start func(context.Context, Options) (*Server, error), suffix string) func(context.Context, Options) (*Group, error) {
		return func(ctx context.Context, o Options) (*Group, error) {
			s, err := start(ctx, o)
			if err != nil {
				return nil, err
			}
			s.URL = strings.Replace(s.URL, "://", suffix+"://", 1)
			return &Group{URL: s.URL, Servers: []*Server{s}}, nil
		}
	}
	redis := func(_ context.Context, o Options) (*Server, error) { return Redis(o) }
	return map[string]func(context.Context, Options) (*Group, error){
		"redis":             one(redis, ""),
		"redlock":           redlockOf,
		"etcd":              func(_ context.Context, o Options) (*Group, error) { return joined(Etcd(EtcdOptions{Options: o})) },
		"zookeeper":         func(_ context.Context, o Options) (*Group, error) { return joined(ZooKeeper(o)) },
		"consul":            consulOf,
		"postgres":          one(Postgres, ""),
		"postgres+advisory": one(Postgres, "+advisory"), // its locks end with their connections
		"mysql":             one(MariaDB, ""),
		"mysql+getlock":     one(MariaDB, "+getlock"), // the same
		"kubernetes":        kubernetesOf,
		"holdfast":          one(Holdfast, ""), // on a file of its own
	}
}

// Start starts the servers, and waits until they serve.
func (g *Group) Start(ctx context.Context) error {
	for _, s := range g.Servers {
		if err := s.Launch(); err != nil {
			return err
		}
		if g.InTurn {
			if err := s.Ready(ctx); err != nil {
				return err
			}
		}
	}
	for _, s := range g.Servers {
		if err := s.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// End ends the servers that run. Errors: ErrEnded if one has ended by itself.
func (g *Group) End() error {
	var errs []error
	for _, s := range slices.Backward(g.Servers) {
		errs = append(errs, s.End())
	}
	return errors.Join(errs...)
}

// joined has the addresses of all in the URL of the first.
func joined(all []*Server, err error) (*Group, error) {
	if err != nil {
		return nil, err
	}
	g := &Group{URL: all[0].URL, Servers: all}
	for _, s := range all[1:] {
		g.URL += "," + s.addr
	}
	return g, nil
}

// redlockOf: none of the five servers is a backend by itself.
func redlockOf(_ context.Context, o Options) (*Group, error) {
	addrs, all := make([]string, 5), make([]*Server, 5)
	for i := range all {
		s, err := redis(o, fmt.Sprintf("m%d", i+1))
		if err != nil {
			return nil, err
		}
		all[i], addrs[i], s.URL = s, s.addr, ""
	}
	return &Group{URL: "redlock://" + strings.Join(addrs, ","), Servers: all}, nil
}

// consulOf: the clients use the first server, like an agent of their host.
func consulOf(_ context.Context, o Options) (*Group, error) {
	all, _, err := Consul(ConsulOptions{Options: o})
	if err != nil {
		return nil, err
	}
	return &Group{URL: all[0].URL, Servers: all}, nil
}

func kubernetesOf(_ context.Context, o Options) (*Group, error) {
	stores, err := Etcd(EtcdOptions{Options: Options{Dir: filepath.Join(o.Dir, "etcd"), Programs: o.Programs}})
	if err != nil {
		return nil, err
	}
	s, err := Kubernetes(o, stores[0].addr)
	if err != nil {
		return nil, err
	}
	return &Group{URL: s.URL, Servers: append(stores, s), InTurn: true}, nil
}
