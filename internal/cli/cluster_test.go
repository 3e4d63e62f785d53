//go:build unix

package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testserver"
	"github.com/holdfast-io/holdfast/server/embedded"
)

// trio has three nodes on the loopback.
type trio struct {
	t     *testing.T
	dir   string
	peers []string
	addrs []string
	nodes []*testserver.Process

	nodeFlags  []string // of serve, and of the commands for a stopped node
	serveFlags []string
	scheme     string // of clients; "" means holdfast
	params     string // of the URL of a client that may do everything
}

func startTrio(t *testing.T) *trio {
	t.Helper()
	c := newTrio(t, "http")
	for i := range c.nodes {
		c.start(i)
	}
	return c
}

// newTrio returns the nodes before they are started.
func newTrio(t *testing.T, peerScheme string) *trio {
	t.Helper()
	c := &trio{t: t, dir: testserver.Dir(t), nodes: make([]*testserver.Process, 3), scheme: "holdfast"}
	for _, name := range []string{"a", "b", "c"} {
		c.peers = append(c.peers, fmt.Sprintf("%s=%s://127.0.0.1:%d", name, peerScheme, testserver.FreePort(t)))
		c.addrs = append(c.addrs, fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t)))
	}
	return c
}

// url returns the URL of nodes.
func (c *trio) url(nodes ...int) string {
	hosts := make([]string, len(nodes))
	for i, n := range nodes {
		hosts[i] = c.addrs[n]
	}
	return c.scheme + "://" + strings.Join(hosts, ",") + c.params
}

func (c *trio) folder(i int) string { return filepath.Join(c.dir, c.peers[i][:1]) }

func (c *trio) flags(i int) []string {
	return append([]string{"--data-dir", c.folder(i), "--name", c.peers[i][:1], "--cluster", strings.Join(c.peers, ",")}, c.nodeFlags...)
}

func (c *trio) start(i int) {
	c.nodes[i] = testserver.Start(c.t, testserver.Command{
		Path: binary, Args: slices.Concat([]string{"serve", "--listen", c.addrs[i]}, c.flags(i), c.serveFlags), Env: []string{"XDG_STATE_HOME=" + c.dir},
	})
}

// cluster runs a subcommand on a node.
func (c *trio) cluster(i int, args ...string) result {
	return run(c.t, command(c.t, c.url(i), append([]string{"cluster"}, args...)...))
}

func (c *trio) status(i int) embedded.Status {
	c.t.Helper()
	r := c.cluster(i, "status", "--json")
	var s embedded.Status
	if err := json.Unmarshal([]byte(r.out), &s); err != nil {
		c.t.Fatalf("%v: %+v", err, r)
	}
	return s
}

// becomes waits until the status of a node has an exit status.
func (c *trio) becomes(i, status int) {
	c.t.Helper()
	c.nodes[i].Await(time.Minute, func(context.Context) error {
		if r := c.cluster(i, "status"); r.status != status {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
}

// form makes the first node form a cluster, and waits for the others.
func (c *trio) form() {
	c.t.Helper()
	c.nodes[0].Await(time.Minute, func(context.Context) error {
		if r := c.cluster(0, "init"); r.status != 0 {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	for i := range c.nodes {
		c.becomes(i, 0)
	}
}

// offline runs a subcommand on the folder of a stopped node.
func (c *trio) offline(i int, args ...string) result {
	cmd := command(c.t, "", slices.Concat([]string{"cluster"}, args, c.flags(i))...)
	cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+c.dir)
	return run(c.t, cmd)
}

// Every command for a cluster is done or refused with a reason, and a lock that is held stays
// held: across a restored snapshot, and when one node continues alone.
func TestClusterCommands(t *testing.T) {
	t.Parallel()
	c := startTrio(t)
	c.form()
	c.everyCommand()
}

// everyCommand runs every command on a cluster that was formed. It ends with the node c alone.
func (c *trio) everyCommand() {
	t := c.t
	t.Helper()
	want := func(r result, status int, says string) {
		t.Helper()
		if r.status != status || !strings.Contains(r.out+r.stderr, says) {
			t.Errorf("status %d, want %d and %q: %s%s", r.status, status, says, r.out, r.stderr)
		}
	}
	holds := func(i int) {
		t.Helper()
		want(steadily(func() result {
			return run(t, command(t, c.url(i), "acquire", "kept", "--ttl", "1h", "--wait", "0s"))
		}), 75, "kept")
	}
	want(run(t, command(t, c.url(0), "acquire", "kept", "--ttl", "1h")), 0, "")
	want(steadily(func() result { return c.cluster(0, "promote", "b") }), 0, "majority 2") // it has its vote
	want(c.cluster(0, "add", "d"), 64, "NAME=PEER-URL")
	scheme, _, _ := strings.Cut(c.peers[0][2:], ":")
	d := fmt.Sprintf("d=%s://127.0.0.1:%d", scheme, testserver.FreePort(t))
	add, remove := func() result { return c.cluster(0, "add", d) }, func() result { return c.cluster(1, "remove", "d") }
	want(steadily(add, func() { remove() }), 0, "learner")
	want(c.cluster(1, "promote", "d"), 74, "has not started")
	want(steadily(remove, func() { add() }), 0, "majority 2")
	want(steadily(remove), 1, "d")
	file := filepath.Join(c.dir, "snapshot.db")
	want(steadily(func() result { return c.cluster(2, "snapshot", file) }), 0, file)
	want(c.cluster(2, "snapshot", file), 1, "exists")
	want(c.offline(0, "restore", file), 1, "")
	for _, n := range c.nodes {
		n.Kill()
	}
	want(c.offline(0, "restore", file), 1, "")
	if err := errors.Join(os.RemoveAll(c.folder(0)), os.RemoveAll(c.folder(1))); err != nil {
		t.Fatal(err)
	}
	want(c.offline(0, "restore", file), 0, "a new cluster of one node")
	c.start(0)
	c.becomes(0, 0)
	holds(0)
	c.nodes[0].Kill()
	want(c.offline(2, "reclaim", "--give-up", "a,b"), 64, "--yes")
	want(c.offline(2, "reclaim", "--give-up", "a", "--yes"), 64, "b")
	reclaimed := c.offline(2, "reclaim", "--give-up", "a,b", "--yes")
	// A node that was killed right after the removal of d may still have d on its disk. It never had a
	// name, so it is listed by its ID, anywhere among the others.
	if known := regexp.MustCompile(`as this node knows them: ((?:[0-9a-f]+,)?a,(?:[0-9a-f]+,)?b(?:,[0-9a-f]+)?)\s`).FindStringSubmatch(reclaimed.stderr); known != nil {
		reclaimed = c.offline(2, "reclaim", "--give-up", known[1], "--yes")
	}
	want(reclaimed, 0, "a new cluster of one node")
	c.start(2)
	c.becomes(2, 0)
	holds(2)
}

// Nodes that wait report it. The commands form a cluster, remove a node whose data is gone, and
// admit it again, while verify runs on it.
func TestClusterReplacedUnderLoad(t *testing.T) {
	t.Parallel()
	c := startTrio(t)
	c.becomes(0, 74)
	c.form()
	if r := c.cluster(1, "init"); r.status != 1 || !strings.Contains(r.stderr, "in a cluster already") {
		t.Errorf("a second cluster: %+v", r)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	verify := exec.CommandContext(ctx, binary, "verify", "--backend", "holdfast://"+c.addrs[0], "--for", "8s", "--profile", "gentle", "--rate", "100")
	type verdict struct {
		out []byte
		err error
	}
	judged := make(chan verdict, 1)
	go func() {
		out, err := verify.CombinedOutput()
		judged <- verdict{out, err}
	}()
	c.nodes[2].Kill()
	c.becomes(0, 1)
	if r := run(t, command(t, "holdfast://"+c.addrs[0], "doctor")); r.status != 1 || !strings.Contains(r.out, "the node c of the cluster is down") {
		t.Errorf("doctor: %+v", r)
	}
	if err := os.RemoveAll(c.folder(2)); err != nil {
		t.Fatal(err)
	}
	lost := exec.CommandContext(ctx, binary, append([]string{"serve", "--listen", c.addrs[2]}, c.flags(2)...)...)
	lost.Env = append(os.Environ(), "XDG_STATE_HOME="+c.dir)
	if out, err := lost.CombinedOutput(); err == nil || !strings.Contains(string(out), `c has lost its data: "holdfast cluster remove c", then start it again`) {
		t.Errorf("without its data: %v, %s", err, out)
	}
	if r := c.cluster(1, "remove", "c"); r.status != 0 {
		t.Fatalf("%+v", r)
	}
	c.start(2)
	c.becomes(2, 0)
	if s := c.status(0); len(s.Members) != 3 || s.Majority != 2 {
		t.Errorf("%+v", s)
	}
	// How long a lock may be free is judged on idle machines: three nodes, their replacement
	// and the workers share this one.
	v := <-judged
	if wrong := regexp.MustCompile(`(?m)^ +violation +(overlap|tokens|register|model|rest)\b`).Find(v.out); wrong != nil || !strings.Contains(string(v.out), "overlaps") {
		t.Errorf("verify: %v\n%s", v.err, v.out)
	}
}

// A command continues when a node is killed, whichever it is.
func TestNodesKilledUnderRun(t *testing.T) {
	t.Parallel()
	disturbedUnderRun(t, "30s", 3, func(c *trio, i int) {
		c.nodes[i].Kill()
		time.Sleep(31 * time.Second) // longer than the TTL
		c.start(i)
	})
}

// A command continues when the node that it uses hangs, without closing a connection: first the leader, then the
// node to which the command has moved.
func TestNodesHangUnderRun(t *testing.T) {
	t.Parallel()
	disturbedUnderRun(t, "30s", 2, func(c *trio, i int) {
		c.nodes[i].Stop()
		time.Sleep(32 * time.Second) // longer than the TTL
		c.nodes[i].Cont()
	})
}

// disturbedUnderRun disturbs the first nodes, one after the other, while a command holds a lock and another one
// waits for it. Both end well: with the addresses of all nodes a client finds those that are left.
func disturbedUnderRun(t *testing.T, ttl string, nodes int, disturb func(c *trio, i int)) {
	t.Helper()
	c := startTrio(t)
	c.form()
	all := c.url(0, 1, 2)
	begun, stop := filepath.Join(c.dir, "begun"), filepath.Join(c.dir, "stop")
	holder := command(t, all, "run", "job", "--ttl", ttl, "--", "sh", "-c", `touch "$1"; until test -e "$2"; do sleep 0.1; done`, "sh", begun, stop)
	waiter := command(t, all, "run", "job", "--ttl", ttl, "--", "true")
	results := make(chan result, 2)
	go func() { results <- run(t, holder) }()
	await(t, time.Minute, "the command runs", func() bool { _, err := os.Stat(begun); return err == nil })
	go func() { results <- run(t, waiter) }()
	for i := range nodes {
		disturb(c, i)
		c.becomes(i, 0)
	}
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if r := <-results; r.status != 0 {
			t.Errorf("%+v", r)
		}
	}
}
