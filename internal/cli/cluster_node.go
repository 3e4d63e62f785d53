package cli

import (
	"context"
	"errors"

	"github.com/holdfast-io/holdfast/server"
	"github.com/holdfast-io/holdfast/server/embedded"
)

// clusterNode adapts a node to server.Cluster.
type clusterNode struct{ *embedded.Etcd }

// Status returns the status of the node.
func (n clusterNode) Status(ctx context.Context) any { return n.Etcd.Status(ctx) }

// Init forms a cluster.
func (n clusterNode) Init(ctx context.Context) error { return refusedAs(n.Etcd.Init(ctx)) }

// Add adds a node as a member.
func (n clusterNode) Add(ctx context.Context, name, url string) error {
	return refusedAs(n.Etcd.Add(ctx, name, url))
}

// Remove removes a member.
func (n clusterNode) Remove(ctx context.Context, name string) error {
	return refusedAs(n.Etcd.Remove(ctx, name))
}

// Promote makes a member a voting member.
func (n clusterNode) Promote(ctx context.Context, name string) error {
	return refusedAs(n.Etcd.Promote(ctx, name))
}

// Compact makes room on this node.
func (n clusterNode) Compact(ctx context.Context) error { return refusedAs(n.Etcd.Compact(ctx)) }

// refusedAs converts the node's refusal to the server's.
func refusedAs(err error) error {
	if errors.Is(err, embedded.ErrRefused) {
		return &clusterRefusedError{err}
	}
	return err
}

// clusterRefusedError is an error of the node that matches server.ErrClusterRefused.
type clusterRefusedError struct{ err error }

func (e *clusterRefusedError) Error() string   { return e.err.Error() }
func (e *clusterRefusedError) Unwrap() []error { return []error{e.err, server.ErrClusterRefused} }
