package zklock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// Examine asks each server for its version and its role in the ensemble, over a separate
// connection, with the command srvr, which every server accepts unless configured otherwise. It also
// checks whether the user lacks a right. It implements backend.Examiner.
func (b *Backend) Examine(ctx context.Context) ([]backend.Finding, error) {
	ctx, done, err := b.sessions.Begin(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer done()
	lacks, err := b.lacking(ctx)
	if err != nil {
		return nil, b.fail(ctx, "examine", err, false)
	}
	out := backend.Findings(false, lacks...)
	found := func(usual bool, format string, args ...any) {
		out = append(out, backend.Finding{Text: fmt.Sprintf(format, args...), Usual: usual})
	}
	for _, addr := range b.cfg.Servers {
		version, mode, err := b.ask(ctx, addr)
		switch {
		case ctx.Err() != nil:
			return nil, b.fail(ctx, "examine", context.Cause(ctx), false)
		case err != nil:
			found(true, "the server %s does not answer, or not in plain text: its version was not checked", addr)
		case version == "":
			found(true, "the server %s does not accept the command srvr: its version was not checked", addr)
		case strings.HasPrefix(version, "3.4.") || slices.Contains([]string{"3.5.0", "3.5.1", "3.5.2"}, version):
			found(false, "the server %s is version %s, which has no container nodes: the parent nodes of unused locks are not removed", addr, version)
		}
		if mode == "standalone" {
			found(true, "the server %s runs standalone: while it is unavailable, no lock can be acquired or renewed", addr)
		}
	}
	return out, nil
}

// lacking returns a finding if the user lacks a right. It asks for changes in a transaction whose last
// operation always fails, because it creates a node once more, so that none is made. The ensemble checks
// the rights for each operation first.
func (b *Backend) lacking(ctx context.Context) ([]string, error) {
	l, err := b.controlLink(ctx)
	if err != nil {
		return nil, err
	}
	create := func(path string) *zk.CreateRequest { return &zk.CreateRequest{Path: path, Acl: b.cfg.acl()} }
	probe := func(parent string, more ...any) error {
		ops := append([]any{create(parent + "/rights")}, more...)
		_, err := call(ctx, l, func() ([]zk.MultiResponse, error) { return l.conn.Multi(append(ops, create(parent+"/rights"))...) })
		return err
	}
	other := b.locksPath() + "/rights-too"
	right := ""
	err = probe(b.locksPath(), create(other), &zk.DeleteRequest{Path: other, Version: -1})
	switch {
	case errors.Is(err, zk.ErrNoAuth):
		right = below + b.cfg.Path
	case errors.Is(err, zk.ErrNoNode): // nothing was made yet
		if errors.Is(probe(b.cfg.Path), zk.ErrNoAuth) {
			right = "to create nodes (c) below " + b.cfg.Path
		}
	case errors.Is(err, zk.ErrNodeExists):
		_, err := call(ctx, l, func() ([]string, error) {
			nodes, _, err := l.conn.Children(b.locksPath())
			return nodes, err
		})
		if errors.Is(err, zk.ErrNoAuth) {
			right = below + b.cfg.Path
		} else if err != nil {
			return nil, err
		}
	default:
		return nil, err
	}
	if right == "" {
		return nil, nil
	}
	return []string{connect.Lacks(name, right, nil).Error()}, nil
}

// ask returns the version and the mode that a server reports.
func (b *Backend) ask(ctx context.Context, addr string) (string, string, error) {
	const patience, most = 3 * time.Second, 64 << 10
	conn, err := b.cfg.dial("tcp", addr, addr, patience)
	if err != nil {
		return "", "", err
	}
	defer conn.Close() //nolint:errcheck // the answer was read, or there is none
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", "", err //nolint:wrapcheck // it is not reported
	}
	if _, err := io.WriteString(conn, "srvr"); err != nil {
		return "", "", err //nolint:wrapcheck // it is not reported
	}
	var version, mode string
	lines := bufio.NewScanner(io.LimitReader(conn, most))
	for lines.Scan() {
		if v, ok := strings.CutPrefix(lines.Text(), "Zookeeper version: "); ok {
			version, _, _ = strings.Cut(v, "-")
		}
		if v, ok := strings.CutPrefix(lines.Text(), "Mode: "); ok {
			mode = v
		}
	}
	return version, mode, lines.Err()
}
