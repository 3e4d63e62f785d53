package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/server/embedded"
)

func (a *app) clusterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Manage the nodes of holdfast serve",
		Long: `Manage the cluster that nodes of "holdfast serve --cluster" form.

A node is reached through --backend holdfast://HOST:PORT (default: HOLDFAST_BACKEND if that
is such a URL, else holdfast://127.0.0.1:7420), or holdfasts:// with ?ca=, cert= and key=,
or holdfast+unix://. Of several nodes in the URL, the first that can be reached is used.
restore and reclaim work on the data folder of a stopped node. docs/operations.md explains
when to use which command. A node that runs with --anonymous is managed from its own host
only.`,
		Example: `  holdfast cluster init --backend holdfast://a:7420
  holdfast cluster status --backend "holdfasts://a,b,c?ca=ca.pem&cert=oncall.pem&key=oncall.key"
  holdfast cluster remove c`,
	}
	cmd.AddCommand(
		a.clusterStatusCommand(),
		a.clusterChangeCommand("init", "init", "Form a new cluster: once, on one node that waits",
			`Form a cluster of one node, which waits with an empty folder. The other nodes on its
--cluster list then join by themselves.

The node refuses unless every other node on the list answers and has an empty folder as
well: a second cluster beside one that is only unreachable would grant its locks again.`),
		a.clusterChangeCommand("add NAME=PEER-URL", "add", "Add a node that is not on the --cluster list of the other nodes",
			`Add a node that is not on the --cluster list of the other nodes. Then start the node, with
an empty folder and a list that names one of the others. The node has no vote until it has
all the data.`),
		a.clusterChangeCommand("remove NAME", "remove", "Remove a node from the cluster for good",
			`Remove a node from the cluster. The other nodes then refuse its data; with an empty folder
it can join again, as a new member. The command fails if the remaining nodes that are
reachable are not a majority: see reclaim.`),
		a.clusterChangeCommand("promote NAME", "promote", "Give its vote to a node that has caught up",
			`Give a node that has joined its vote. This happens by itself when the node has caught up;
the command reports why it has not happened.`),
		a.clusterCompactCommand(), a.clusterSnapshotCommand(), a.clusterRestoreCommand(), a.clusterReclaimCommand(),
	)
	return cmd
}

func (a *app) clusterStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the members, the leader, and the members that are down",
		Long: `Show the cluster as one of its nodes sees it. The node needs no majority for that. Of several
nodes in the URL, the first that grants locks is asked, else the first that answers.

Exit status: 0 all members are running; 1 locks are granted, but a member is down or has no
vote yet; 74 the node is waiting and grants nothing, or an alarm of the cluster is set.`,
		Example: `  holdfast cluster status --backend holdfast://a:7420 --json`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.clusterStatus(cmd.Context())
			if err != nil {
				return err
			}
			return a.printCluster(s)
		},
	}
}

func (a *app) clusterChangeCommand(use, action, short, long string) *cobra.Command {
	args := cobra.ExactArgs(1)
	if action == use {
		args = cobra.NoArgs
	}
	return &cobra.Command{
		Use: use, Short: short, Long: long, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			change := map[string]string{}
			if len(args) > 0 {
				change["name"] = args[0]
			}
			if action == "add" {
				name, url, ok := strings.Cut(args[0], "=")
				if !ok {
					return usageError("node", "%q: must be NAME=PEER-URL", args[0])
				}
				change["name"], change["url"] = name, url
			}
			n, err := a.nodes()
			if err != nil {
				return err
			}
			s, err := n.change(cmd.Context(), "/"+action, change)
			if err != nil {
				return err
			}
			if err := a.printCluster(s); err != nil && !isSilent(err) { // which nodes are down does not matter here
				return err
			}
			return nil
		},
	}
}

func (a *app) clusterSnapshotCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "snapshot FILE",
		Short: "Save all locks and tokens to a file",
		Long: `Save the data of the whole cluster, as of now, to a new file for "holdfast cluster restore".
The file contains lease IDs, with which locks can be released: only its owner can read it.`,
		Example: `  holdfast cluster snapshot /var/backups/holdfast-$(date +%F).db`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := a.saveSnapshot(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]any{"file": args[0], "bytes": n})
			}
			_, err = fmt.Fprintf(a.stdout, "%s: %d bytes\n", args[0], n)
			return err
		},
	}
}

func (a *app) saveSnapshot(ctx context.Context, path string) (int64, error) {
	nodes, err := a.nodes()
	if err != nil {
		return 0, err
	}
	res, err := nodes.send(ctx, http.MethodGet, "/snapshot", nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return 0, clusterProblem(res)
	}
	tmp := path + ".part"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600) //nolint:gosec // the operator's choice
	if err != nil {
		return 0, fmt.Errorf("snapshot: %w", err)
	}
	n, err := io.Copy(f, res.Body) // a truncated answer is an error
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Link(tmp, path) // never replaces an existing file
	}
	if err = errors.Join(err, os.Remove(tmp)); err != nil {
		return 0, fmt.Errorf("snapshot: %w", err)
	}
	return n, nil
}

// printCluster prints the status, and returns the exit status as an error.
func (a *app) printCluster(s *embedded.Status) error {
	whole := s.Ready
	rows := make([][]string, 0, len(s.Members))
	for _, m := range s.Members {
		role := "voter"
		switch {
		case s.Cluster == "":
			role = "-"
		case m.Leader:
			role = "leader"
		case m.Learner:
			role = "learner"
		}
		whole = whole && m.State == "running" && !m.Learner
		rows = append(rows, []string{m.Name, m.State, role, m.URL, m.Error})
	}
	if a.json {
		if err := a.printJSON(s); err != nil {
			return err
		}
	} else {
		if err := a.table([]string{"NODE", "STATE", "ROLE", "PEER URL", ""}, rows); err != nil {
			return err
		}
		for _, line := range clusterLines(s) {
			if err := a.line(a.stdout, "%s", line); err != nil {
				return fmt.Errorf("write the answer: %w", err)
			}
		}
	}
	switch {
	case !s.Ready, len(s.Alarms) > 0:
		return exitError(exitAway)
	case !whole:
		return exitError(exitError1)
	}
	return nil
}

// clusterLines returns what is said below the table.
func clusterLines(s *embedded.Status) []string {
	if !s.Ready {
		return []string{s.Name + ": " + s.Waiting}
	}
	size := fmt.Sprintf("data on %s: %s of %s", s.Name, mebibytes(s.Size), mebibytes(s.Quota))
	if alarms := alarmLines(s); len(alarms) > 0 {
		return append([]string{size}, alarms...)
	}
	return []string{size, "granting locks; majority " + strconv.Itoa(s.Majority)}
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// alarmLines returns a sentence for each alarm.
func alarmLines(s *embedded.Status) []string {
	var lines []string
	for _, m := range s.Alarms {
		if m.Kind == embedded.AlarmNoSpace {
			lines = append(lines, fmt.Sprintf("nothing is granted: the data on %s has reached its quota; run \"holdfast cluster compact\" on every node", m.Node))
			continue
		}
		lines = append(lines, fmt.Sprintf("nothing is granted: the data on %s is %s; replace the node", m.Node, m.Kind))
	}
	return lines
}

// membersDown returns a sentence for each node behind a Holdfast server that does not run. It
// returns none for a server on another store, or one that does not let this client see its
// nodes.
func (a *app) membersDown(ctx context.Context) []string {
	if to, err := a.url(); err != nil || !strings.HasPrefix(to, "holdfast") {
		return nil
	}
	s, err := a.clusterStatus(ctx)
	if err != nil {
		return nil
	}
	var down []string
	for _, m := range s.Members {
		switch {
		case m.State != "running":
			down = append(down, fmt.Sprintf("the node %s of the cluster is down (%s)", m.Name, m.State))
		case m.Learner:
			down = append(down, fmt.Sprintf("the node %s of the cluster has no vote yet", m.Name))
		}
	}
	return append(down, alarmLines(s)...)
}
