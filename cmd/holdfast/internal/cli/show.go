package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
)

// The JSON output has the form of the HTTP API.
type (
	lockOut struct {
		Name    string      `json:"name"`
		Limit   int         `json:"limit"`
		Holders []holderOut `json:"holders"`
		Waiters []waiterOut `json:"waiters"`
	}
	holderOut struct {
		Lease     string `json:"lease"`
		Owner     string `json:"owner"`
		Token     uint64 `json:"token"`
		Shared    bool   `json:"shared"`
		Permits   int    `json:"permits"`
		Note      string `json:"note"`
		Since     string `json:"since"`
		ExpiresAt string `json:"expires_at"`
	}
	waiterOut struct {
		Owner    string `json:"owner"`
		Shared   bool   `json:"shared"`
		Permits  int    `json:"permits"`
		Note     string `json:"note"`
		Since    string `json:"since"`
		Position int    `json:"position"`
	}
)

func lockOf(l holdfast.LockInfo) lockOut {
	out := lockOut{Name: l.Name, Limit: l.Limit, Holders: []holderOut{}, Waiters: []waiterOut{}}
	for _, h := range l.Holders {
		out.Holders = append(out.Holders, holderOf(h))
	}
	for i, w := range l.Waiters {
		out.Waiters = append(out.Waiters, waiterOut{
			Owner: w.Owner, Shared: w.Mode == backend.Shared, Permits: w.Permits, Note: w.Note, Since: stamp(w.Since), Position: i + 1,
		})
	}
	return out
}

func holderOf(h holdfast.Holder) holderOut {
	return holderOut{
		Lease: string(h.Lease), Owner: h.Owner, Token: uint64(h.Token), Shared: h.Mode == backend.Shared, Permits: h.Permits,
		Note: h.Note, Since: stamp(h.Since), ExpiresAt: stamp(time.Now().Add(h.Left)),
	}
}

func (a *app) lsCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "ls [PREFIX]",
		Aliases: []string{"list"},
		Short:   "List the locks that are held or have waiters",
		Example: `  holdfast ls
  holdfast ls order/ --json
  watch holdfast ls order/      # a live table`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, done, err := a.client(cmd.Context(), holdfast.Config{})
			if err != nil {
				return err
			}
			defer done()
			a.tellScope()
			locks, err := listAll(cmd.Context(), c, strings.Join(args, ""))
			if err != nil {
				return err
			}
			return a.printList(locks)
		},
	}
}

// listAll reads all of them, or none.
func listAll(ctx context.Context, c *holdfast.Client, prefix string) ([]holdfast.LockInfo, error) {
	var locks []holdfast.LockInfo
	for lock, err := range c.All(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		locks = append(locks, lock)
	}
	return locks, nil
}

// printList prints locks as a table, or as JSON.
func (a *app) printList(locks []holdfast.LockInfo) error {
	if !a.json {
		return a.printLocks(locks)
	}
	out := make([]lockOut, 0, len(locks))
	for _, l := range locks {
		out = append(out, lockOf(l))
	}
	return a.printJSON(map[string]any{"locks": out})
}

func (a *app) printLocks(locks []holdfast.LockInfo) error {
	rows := make([][]string, 0, len(locks))
	for _, l := range locks {
		rows = append(rows, lockRow(l))
	}
	if len(rows) == 0 {
		a.warn("no lock is held or has waiters")
		return nil
	}
	return a.table([]string{"LOCK", "MODE", "HELD BY", "TOKEN", "SINCE", "LEFT", "WAITING"}, rows)
}

func lockRow(l holdfast.LockInfo) []string {
	row := []string{l.Name, "-", "-", "-", "-", "-", strconv.Itoa(len(l.Waiters))}
	if len(l.Holders) == 0 {
		return row
	}
	h := l.Holders[0]
	row[1], row[2], row[3] = h.Mode.String(), h.Owner, strconv.FormatUint(uint64(h.Token), 10)
	row[4], row[5] = ago(h.Since), left(h)
	if n := len(l.Holders) - 1; n > 0 {
		row[2] += fmt.Sprintf(" and %d more", n)
	}
	return row
}

// left returns how much time a lease has; some stores do not report it.
func left(h holdfast.Holder) string {
	if h.Left <= 0 {
		return "-"
	}
	return h.Left.Round(100 * time.Millisecond).String()
}

func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return max(0, time.Since(t)).Round(time.Second).String() + " ago"
}

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "show NAME",
		Aliases:           []string{"inspect"},
		Short:             "Show the holders of a lock and its queue",
		Example:           `  holdfast show nightly-report`,
		Args:              oneName,
		ValidArgsFunction: a.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, done, err := a.client(cmd.Context(), holdfast.Config{})
			if err != nil {
				return err
			}
			defer done()
			info, err := c.Inspect(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(lockOf(info))
			}
			return a.printLock(info)
		},
	}
}

func (a *app) printLock(info holdfast.LockInfo) error {
	if len(info.Holders) == 0 && len(info.Waiters) == 0 {
		return a.line(a.stdout, "%s is free", info.Name)
	}
	rows := make([][]string, 0, len(info.Holders)+len(info.Waiters))
	for _, h := range info.Holders {
		rows = append(rows, []string{
			"holds", h.Mode.String(), h.Owner, strconv.FormatUint(uint64(h.Token), 10), ago(h.Since),
			left(h), string(h.Lease), h.Note,
		})
	}
	for i, w := range info.Waiters {
		rows = append(rows, []string{"waits, " + strconv.Itoa(i+1), w.Mode.String(), w.Owner, "-", ago(w.Since), "-", string(w.Lease), w.Note})
	}
	return a.table([]string{"", "MODE", "OWNER", "TOKEN", "SINCE", "LEFT", "LEASE", "NOTE"}, rows)
}

// completeNames offers the names of the existing locks.
func (a *app) completeNames(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
	defer cancel()
	c, done, err := a.client(ctx, holdfast.Config{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer done()
	page, err := c.List(ctx, holdfast.ListOptions{Prefix: prefix, Limit: 100})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := make([]string, 0, len(page.Locks))
	for _, l := range page.Locks {
		if oneLine(l.Name) == l.Name { // a shell takes one name per line, and prints it
			names = append(names, l.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
