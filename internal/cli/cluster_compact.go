package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/internal/connect"
)

// compactTime bounds the time in which one node writes its data again.
const compactTime = 11 * time.Minute

func (a *app) clusterCompactCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "compact",
		Short: "Make room on the nodes, and clear the alarm that a quota was reached",
		Long: `Drop the history of every node in the URL, return its free space to the file system, and clear
its alarm, one node after the other. Name all nodes: holdfast://a,b,c. A node answers no
request while it writes its data again, a few seconds for each GiB.

While the alarm is set no lock is granted. Leases are released as before, and those that were
renewed at least once are renewed. The command fails on a node where the locks that are held
take the whole quota: its alarm stays.`,
		Example: `  holdfast cluster compact --backend holdfast://a:7420,b:7420,c:7420`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, err := a.nodes()
			if err != nil {
				return err
			}
			if t, ok := n.client.Transport.(*connect.HTTP); ok {
				t.ResponseHeaderTimeout = compactTime
			}
			var failed error
			for _, base := range n.bases {
				s, err := n.of(base).change(cmd.Context(), "/compact", struct{}{})
				if err != nil {
					failed = joined(failed, fmt.Errorf("%s: %w", base.Host, err))
					continue
				}
				if a.json {
					err = a.printJSON(s)
				} else {
					err = a.line(a.stdout, "%s: %s of %s", s.Name, mebibytes(s.Size), mebibytes(s.Quota))
				}
				if err != nil {
					return err
				}
			}
			if failed != nil {
				return failed
			}
			s, err := a.clusterStatus(cmd.Context())
			if err != nil || len(s.Alarms) == 0 {
				return err
			}
			for _, line := range alarmLines(s) {
				a.warn("%s", line)
			}
			return exitError(exitAway)
		},
	}
}
