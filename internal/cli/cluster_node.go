package cli

import (
	"context"
	"errors"

	"github.com/holdfast-io/holdfast/server"
	"github.com/holdfast-io/holdfast/server/embedded"
)

// clusterNode is a node as the server manages it.
type clusterNode struct{ *embedded.Etcd }

// Status is that of the node.
func (n clusterNode) Status(ctx context.Context) any { return n.Etcd.Status(ctx) }

// Init forms a cluster.
func (n clusterNode) Init(ctx context.Context) error { return refusedAs(n.Etcd.Init(ctx)) }

// Add makes a member of a node.
func (n clusterNode) Add(ctx context.Context, name, url string) error {
	return refusedAs(n.Etcd.Add(ctx, name, url))
}

// Remove takes a member out.
func (n clusterNode) Remove(ctx context.Context, name string) error {
	return refusedAs(n.Etcd.Remove(ctx, name))
}

// Promote gives a member its vote.
func (n clusterNode) Promote(ctx context.Context, name string) error {
	return refusedAs(n.Etcd.Promote(ctx, name))
}

// refusedAs makes the server's error of the node's.
func refusedAs(err error) error {
	if errors.Is(err, embedded.ErrRefused) {
		return &clusterRefusedError{err}
	}
	return err
}

// clusterRefusedError is what the server answers with as refused.
type clusterRefusedError struct{ err error }

func (e *clusterRefusedError) Error() string   { return e.err.Error() }
func (e *clusterRefusedError) Unwrap() []error { return []error{e.err, server.ErrClusterRefused} }
