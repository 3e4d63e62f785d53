package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/internal/conns"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server/embedded"
)

func (a *app) clusterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Manage the nodes of holdfast serve",
		Long: `Manage the cluster that nodes of "holdfast serve --cluster" form.

A node is reached through --backend holdfast://HOST:PORT (default: HOLDFAST_BACKEND if that
is such a URL, else holdfast://127.0.0.1:7420); restore and reclaim work on the data folder
of a stopped node. docs/operations.md explains when to use which command.
A node that runs with --anonymous is managed from its own host only.`,
		Example: `  holdfast cluster init --backend holdfast://a:7420
  holdfast cluster status --backend holdfast://b:7420
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
		a.clusterSnapshotCommand(), a.clusterRestoreCommand(), a.clusterReclaimCommand(),
	)
	return cmd
}

func (a *app) clusterStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the members, the leader, and the members that are down",
		Long: `Show the cluster as one of its nodes sees it. The node needs no majority for that.

Exit status: 0 all members are running; 1 locks are granted, but a member is down or has no
vote yet; 74 the node is waiting and grants nothing.`,
		Example: `  holdfast cluster status --backend holdfast://a:7420 --json`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.askCluster(cmd.Context(), http.MethodGet, "", nil)
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
			s, err := a.askCluster(cmd.Context(), http.MethodPost, "/"+action, change)
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
	res, err := a.sendCluster(ctx, http.MethodGet, "/snapshot", nil)
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
		line := "granting locks; majority " + strconv.Itoa(s.Majority)
		if !s.Ready {
			line = s.Name + ": " + s.Waiting
		}
		if _, err := fmt.Fprintln(a.stdout, line); err != nil {
			return fmt.Errorf("write the answer: %w", err)
		}
	}
	switch {
	case !s.Ready:
		return exitError(exitAway)
	case !whole:
		return exitError(exitError1)
	}
	return nil
}

// askCluster requests the status of a node, or a change and then the status.
func (a *app) askCluster(ctx context.Context, method, path string, in any) (*embedded.Status, error) {
	res, err := a.sendCluster(ctx, method, path, in)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, clusterProblem(res)
	}
	var s embedded.Status
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&s); err != nil {
		return nil, fmt.Errorf("decode the answer: %w", err)
	}
	return &s, nil
}

// membersDown returns a sentence for each node behind a Holdfast server that does not run. It
// returns none for a server on another store, or one that does not let this client see its
// nodes.
func (a *app) membersDown(ctx context.Context) []string {
	if to, err := a.url(); err != nil || !strings.HasPrefix(to, "holdfast") {
		return nil
	}
	s, err := a.askCluster(ctx, http.MethodGet, "", nil)
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
	return down
}

func (a *app) sendCluster(ctx context.Context, method, path string, in any) (*http.Response, error) {
	base, token, err := a.nodeURL()
	if err != nil {
		return nil, err
	}
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, base+"/v1/cluster"+path, body)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	transport := conns.NewHTTP(&net.Dialer{Timeout: 10 * time.Second})
	transport.ResponseHeaderTimeout, transport.DisableKeepAlives = time.Minute, true
	client := &http.Client{Transport: transport, CheckRedirect: conns.Stay}
	res, err := client.Do(req)
	if err != nil {
		if why := context.Cause(ctx); why != nil {
			return nil, why
		}
		if bad, ok := errors.AsType[*url.Error](err); ok {
			err = bad.Err // the URL contains no secret, and the operator knows it
		}
		return nil, &statusError{exitAway, fmt.Errorf("%s does not answer: %w", base, err)}
	}
	return res, nil
}

// nodeURL returns the HTTP URL of the node, and the bearer token.
func (a *app) nodeURL() (string, string, error) {
	raw := a.backend
	if raw == "" {
		if raw = os.Getenv("HOLDFAST_BACKEND"); !strings.HasPrefix(raw, "holdfast") {
			raw = "holdfast://127.0.0.1:7420"
		}
	}
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "holdfast" && u.Scheme != "holdfasts" || u.Hostname() == "" || u.RawQuery != "" {
		return "", "", usageError("backend", "must be holdfast://HOST:PORT, a node of the cluster")
	}
	token, _ := u.User.Password()
	port := u.Port()
	if port == "" {
		port = "7420"
	}
	scheme := "http"
	if u.Scheme == "holdfasts" {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(u.Hostname(), port) + strings.TrimRight(u.Path, "/"), token, nil
}

// clusterProblem converts a refusal of the node to an error.
func clusterProblem(res *http.Response) error {
	var p wire.Problem
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&p); err != nil || p.Detail == "" {
		p.Detail = "status " + strconv.Itoa(res.StatusCode)
	}
	status := exitError1
	switch res.StatusCode {
	case http.StatusBadRequest:
		status = exitUsage
	case http.StatusServiceUnavailable:
		status = exitAway
	case http.StatusNotFound:
		p.Detail = "this server's locks are on another store, or it is of an earlier version: there is no cluster to manage"
	}
	return &statusError{status, errors.New(p.Detail)}
}
