package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/holdfast-io/holdfast"
)

func (a *app) printJSONLine(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func (a *app) topCommand() *cobra.Command {
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "top [PREFIX]",
		Short: "Watch the locks in a live table",
		Long: `Show the locks that are held or have waiters, and update the table until q or Ctrl-C.
If the output is not a terminal, print the table once.`,
		Example: `  holdfast top order/`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < 100*time.Millisecond {
				return usageError("every", "%s: must be 100ms or more", every)
			}
			c, done, err := a.client(cmd.Context(), holdfast.Config{})
			if err != nil {
				return err
			}
			defer done()
			return a.top(cmd.Context(), c, strings.Join(args, ""), every)
		},
	}
	cmd.Flags().DurationVar(&every, "every", time.Second, "interval between updates")
	return cmd
}

func (a *app) top(ctx context.Context, c *holdfast.Client, prefix string, every time.Duration) error {
	if !a.isTerminal(a.stdout) || a.json {
		locks, next, err := listAll(ctx, c, prefix, "", 0)
		if err != nil {
			return err
		}
		return a.printList(locks, next)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer a.rawKeys(cancel)()
	// Use the alternate screen, hide the cursor, and cut long lines: a letter may be two
	// columns wide.
	a.control(a.stdout, "\x1b[?1049h\x1b[?25l\x1b[?7l")
	defer a.control(a.stdout, "\x1b[?7h\x1b[?25h\x1b[?1049l") // restores the terminal
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		a.control(a.stdout, a.screen(ctx, c, prefix))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// screen returns one picture of the table, cut to the size of the terminal. Text from a server
// is made visible in it; the other control sequences are for the terminal.
func (a *app) screen(ctx context.Context, c *holdfast.Client, prefix string) string {
	width, height := 80, 24
	if f, ok := raw(a.stdout).(*os.File); ok {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 {
			width, height = w, h
		}
	}
	var text bytes.Buffer
	view := *a
	view.stdout, view.stderr = visible(&text), visible(&text)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	locks, _, err := listAll(ctx, c, prefix, "", 0)
	held, waiting := 0, 0
	for _, l := range locks {
		held += len(l.Holders)
		waiting += len(l.Waiters)
	}
	fmt.Fprintf(view.stdout, "holdfast top   %s   %s   %d locks, %d held, %d waiting   (q quits)\n\n",
		c.Capabilities().Name, time.Now().Format(time.TimeOnly), len(locks), held, waiting)
	if err != nil {
		_ = view.line(view.stdout, "%v", err)
	} else {
		_ = view.printLocks(locks)
	}
	var out strings.Builder
	out.WriteString("\x1b[H\x1b[2J")
	for i, line := range strings.Split(strings.TrimRight(text.String(), "\n"), "\n") {
		if i >= height-1 {
			break
		}
		if r := []rune(line); len(r) > width {
			line = string(r[:width])
		}
		out.WriteString(line + "\r\n")
	}
	return out.String()
}

// rawKeys reads single keys from the terminal and calls quit for q and Ctrl-C. The returned
// function restores the terminal.
func (a *app) rawKeys(quit func()) func() {
	f, ok := a.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func() {}
	}
	was, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return func() {}
	}
	go func() {
		key := make([]byte, 1)
		for {
			if n, err := f.Read(key); n == 0 || err != nil || key[0] == 'q' || key[0] == 3 {
				quit()
				return
			}
		}
	}()
	return func() { _ = term.Restore(int(f.Fd()), was) }
}
