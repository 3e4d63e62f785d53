package cli

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
)

func (a *app) watchCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "watch [PREFIX]",
		Short: "Print what happens to locks, as it happens",
		Long: `Print the events of the locks whose names begin with PREFIX, one line each, until
interrupted. With --json each line is a JSON object.`,
		Example: `  holdfast watch order/`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, done, err := a.client(cmd.Context(), holdfast.Config{})
			if err != nil {
				return err
			}
			defer done()
			for event, err := range c.Watch(cmd.Context(), strings.Join(args, "")) {
				switch {
				case cmd.Context().Err() != nil:
					return nil
				case err != nil:
					return err
				}
				a.printEvent(event)
			}
			return nil
		},
	}
}

func (a *app) printEvent(e holdfast.Event) {
	if a.json {
		out := map[string]any{"event": e.Kind, "at": stamp(e.At)}
		if e.Kind != backend.EventWatching {
			out["name"], out["lease"], out["owner"], out["shared"] = e.Name, e.Lease, e.Owner, e.Mode == backend.Shared
		}
		if e.Token > 0 {
			out["token"] = uint64(e.Token)
		}
		if e.Reason != "" {
			out["reason"] = e.Reason
		}
		_ = a.printJSONLine(out)
		return
	}
	if e.Kind == backend.EventWatching {
		a.warn("watching")
		return
	}
	token := "-"
	if e.Token > 0 {
		token = strconv.FormatUint(uint64(e.Token), 10)
	}
	_ = a.line(a.stdout, "%s  %-9s %-9s %-16s token %s  %s %s", e.At.Local().Format("15:04:05.000"), e.Kind, e.Mode, e.Owner, token, e.Name, e.Reason)
}
