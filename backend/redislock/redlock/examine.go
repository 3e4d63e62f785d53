package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// rights returns what an ACL has to allow: see program.Rights. docs/backends/redlock.md lists the same.
func rights() ([]string, error) {
	p, err := newProgram()
	return p.Rights("config|get", "exists", "info", "ping", "subscribe", "unsubscribe"), err
}

// Examine asks each node whether the user lacks a right. It implements backend.Examiner. A node that does
// not answer is left to Away.
func (b *Backend) Examine(ctx context.Context) ([]backend.Finding, error) {
	ctx, cancel, err := b.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	found := make([][]string, len(b.nodes))
	var asked sync.WaitGroup
	for i, n := range b.nodes {
		asked.Go(func() {
			all, err := n.missing(ctx)
			if server, ok := errors.AsType[*serverError](err); ok && server.Missing() != "" {
				all = []string{server.Missing()}
			}
			for _, right := range all {
				found[i] = append(found[i], fmt.Sprintf("node %d: %v", i+1, connect.Lacks(backendName, right, nil)))
			}
		})
	}
	asked.Wait()
	return backend.Findings(false, slices.Concat(found...)...), nil
}

// missing returns the rights that the user lacks on the node, as words of ACL SETUSER.
func (n *node) missing(ctx context.Context) ([]string, error) {
	words, err := rights()
	if err != nil {
		return nil, err
	}
	ctx, cancel := backend.WithTimeout(ctx, n.b.cfg.RequestTimeout)
	defer cancel()
	return program.Missing(words, n.b.key(""), func(load bool, args []string) ([]program.Reply, error) {
		return n.link.run(ctx, load, n.b.key("m"), args)
	})
}

// named returns the right, or what it is called if the node does not name it.
func (n *node) named(right string) string {
	if right != program.Unnamed {
		return right
	}
	if all, err := n.missing(n.b.base); err == nil && len(all) > 0 {
		return strings.Join(all, " ")
	}
	return right
}
