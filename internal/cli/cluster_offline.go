package cli

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/server/embedded"
)

// nodeFlags adds the flags that describe the node of a data folder, as for serve.
func nodeFlags(cmd *cobra.Command, o *serveOptions) {
	f := cmd.Flags()
	f.StringVar(&o.dataDir, "data-dir", "", "data folder of the node, which must be stopped (default: as for serve)")
	f.StringVar(&o.name, "name", "", "as for serve")
	f.StringSliceVar(&o.cluster, "cluster", nil, "as for serve")
	f.StringVar(&o.peerTLS.Cert, "peer-cert", "", "as for serve")
	f.StringVar(&o.peerTLS.Key, "peer-key", "", "as for serve")
	f.StringVar(&o.peerTLS.CA, "peer-ca", "", "as for serve")
}

func (a *app) offlineConfig(o serveOptions) (embedded.Config, error) {
	peers, err := peersOf(o.cluster)
	if err != nil {
		return embedded.Config{}, err
	}
	return a.nodeConfig(o, peers)
}

func (a *app) clusterRestoreCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a new cluster of one node from a snapshot",
		Long: `Restore a snapshot into the empty data folder of a stopped node, as a new cluster of this
node alone. Then start the node with the same flags, and the other nodes with empty
folders: they join it.

New tokens are above every token that was granted before. Locks that were granted after the
snapshot are lost: stop their holders, or check tokens at the protected resource.`,
		Example: `  holdfast cluster restore holdfast.db --data-dir /var/lib/holdfast --name a --cluster a=...,b=...,c=...`,
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			conf, err := a.offlineConfig(o)
			if err != nil {
				return err
			}
			if err := embedded.Restore(conf, args[0]); err != nil {
				return err
			}
			return a.printRestored(conf.DataDir, args[0])
		},
	}
	nodeFlags(cmd, &o)
	return cmd
}

func (a *app) printRestored(dir, from string) error {
	if a.json {
		return a.printJSON(map[string]any{"data_dir": dir, "from": from})
	}
	_, err := fmt.Fprintf(a.stdout, "%s: a new cluster of one node, from %s; start it, and the others with empty folders\n", dir, from)
	return err
}

// reclaimTime bounds the start of the etcd that reads the folder.
const reclaimTime = 5 * time.Minute

func (a *app) clusterReclaimCommand() *cobra.Command {
	var o serveOptions
	var lost []string
	var yes bool
	cmd := &cobra.Command{
		Use:   "reclaim --give-up NAME,NAME",
		Short: "Continue from one node when the majority is lost for good",
		Long: `Make a new cluster of one node from the data folder of a stopped node, when more than half
of the nodes are lost for good. Of the remaining nodes, use the one with the greatest
revision in "holdfast cluster status".

Name every other member: it is given up for good, and refused if it returns with its data.
Changes that a majority agreed on without this node are lost: a lock can be granted while
its former holder still believes that it holds it. Stop the holders, or check tokens at the
protected resource: new tokens are above every earlier token. The former data is kept
beside the new data.

The command asks for the names again if there is a terminal; otherwise it needs --yes.`,
		Example: `  holdfast cluster reclaim --data-dir /var/lib/holdfast --name a --cluster a=...,b=...,c=... --give-up b,c`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conf, err := a.offlineConfig(o)
			if err != nil {
				return err
			}
			if err := a.confirmLoss(lost, yes); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), reclaimTime)
			defer cancel()
			if err := embedded.ReclaimAlone(ctx, conf, lost); err != nil {
				return err
			}
			return a.printRestored(conf.DataDir, "what this node had")
		},
	}
	nodeFlags(cmd, &o)
	cmd.Flags().StringSliceVar(&lost, "give-up", nil, "all other members, which are lost for good")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}

// confirmLoss asks the operator to type the names of the nodes that are given up.
func (a *app) confirmLoss(lost []string, yes bool) error {
	if yes {
		return nil
	}
	if a.terminal() < 0 {
		return usageError("yes", "nothing was done; add --yes to give up %s for good", strings.Join(lost, ", "))
	}
	fmt.Fprintf(a.stderr, "holdfast: locks may be granted that their holders still believe to have. Type the names of the nodes that are lost for good: ")
	line, err := bufio.NewReader(a.stdin).ReadString('\n')
	typed := strings.FieldsFunc(line, func(r rune) bool { return r == ',' || r <= ' ' })
	slices.Sort(typed)
	if err != nil || !slices.Equal(typed, slices.Sorted(slices.Values(lost))) {
		return usageError("give-up", "nothing was done: that is not %s", strings.Join(lost, ", "))
	}
	return nil
}
