//go:build unix

package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/internal/launch"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// placeTTL is server.Config.PlaceTTL: how long a place in the queue may outlive its request.
const placeTTL = 15 * time.Second

// holdfast completes three nodes of our own server. The workers use one node each, in turn: each
// node must know the grants of the others. A waiter's place stays in the queue for a while when the
// node at which it waited crashes.
func (c *cluster) holdfast() {
	for i, m := range c.members {
		m.node, m.data, m.trace = fmt.Sprintf("n%d", i+1), m.Path("data"), placeTTL
	}
	c.apart, c.form, c.replace = true, c.formNodes, c.replaceNode
}

// formNodes forms a cluster of nodes that wait with empty folders. The command is refused until
// all of them answer.
func (c *cluster) formNodes(ctx context.Context) error {
	if err := c.manage(ctx, c.members[0], "init"); err != nil {
		return err
	}
	return c.whole(ctx)
}

// whole waits until every node reports that all members run and have their votes. A node that
// is lost before that may take the majority with it.
func (c *cluster) whole(ctx context.Context) error {
	for _, m := range c.members {
		if err := c.manage(ctx, m, "status"); err != nil {
			return err
		}
	}
	return nil
}

// wipe deletes the data of a member: the member is killed, its folder deleted, and it is
// restored, all within the time that a server may take to start.
func (c *cluster) wipe(ctx context.Context, m *member) error {
	ctx, cancel := context.WithTimeout(ctx, launch.StartTimeout)
	defer cancel()
	if err := c.whole(ctx); err != nil {
		return err
	}
	if err := m.Kill(); err != nil {
		return err
	}
	if err := os.RemoveAll(m.data); err != nil {
		return fmt.Errorf("verify: delete the data of a server: %w", err)
	}
	return c.replace(ctx, m)
}

// replaceNode follows docs/operations.md for a node whose disk is lost. Before that, the node
// is started with its empty folder, as a supervisor does by itself: it must be refused, or
// wait.
func (c *cluster) replaceNode(ctx context.Context, m *member) error {
	const supervised = 10 * time.Second
	if err := m.start(); err != nil {
		return err
	}
	select {
	case <-m.Process().Ended():
	case <-time.After(supervised):
		if m.serves(ctx) == nil {
			return fmt.Errorf("verify: %s grants locks with an empty folder, and was not let into the cluster again", m.node)
		}
		if err := m.Kill(); err != nil {
			return err
		}
	}
	other := c.members[(slices.Index(c.members, m)+1)%len(c.members)]
	if err := c.manage(ctx, other, "remove", m.node); err != nil {
		return err
	}
	if err := m.revive(ctx); err != nil {
		return err
	}
	return c.whole(ctx)
}

// manage runs a subcommand of "holdfast cluster" on a node until it succeeds. It fails for a
// while after a start or the loss of the leader.
func (c *cluster) manage(ctx context.Context, on *member, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, launch.StartTimeout)
	defer cancel()
	argv, err := launch.Options{Programs: c.programs}.Program("holdfast")
	if err != nil {
		return err
	}
	argv = slices.Concat(argv, []string{"cluster"}, args, []string{"--backend", on.URL})
	for {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // this program itself
		cmd.Dir, cmd.SysProcAttr = c.dir, sysProcAttr()
		cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+c.dir) // as the nodes
		out, err := cmd.CombinedOutput()
		if err == nil || args[0] == "remove" && bytes.Contains(out, []byte("there is no member")) { // an earlier reply was lost
			return nil
		}
		select {
		case <-on.Process().Ended():
			return fmt.Errorf("verify: %s: %w: %s", on.node, launch.ErrEnded, on.Process().Tail())
		default:
		}
		if !retry.Pause(ctx, 200*time.Millisecond) {
			return errors.Join(fmt.Errorf("verify: holdfast cluster %s on %s: %w: %.500s", strings.Join(args, " "), on.node, err, out), context.Cause(ctx))
		}
	}
}
