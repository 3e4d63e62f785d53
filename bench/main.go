// Command holdfast-bench measures Holdfast, the bare commands of each store and the locks of other projects, which
// take turns in one process. It is a module of its own, so that programs that use Holdfast, and the command holdfast
// itself, compile none of the others.
//
// There is one file for each store: how it is reached and metered, its bare commands, and other locks on it. Such a
// lock is used as its own documentation says, with its defaults, except where that says what to change for many
// waiters. A comment says so at each such place. One whose call gives up by itself is called again until it has the
// lock.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/internal/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "holdfast-bench:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("holdfast-bench", flag.ContinueOnError)
	flags.SetOutput(progress)
	url := flags.String("backend", "", "URL of a running server to measure, instead of starting one")
	var names, only, contenders list
	flags.Var(&names, "engine", "local servers to start, such as redis,etcd (default: all that are installed)")
	flags.Var(&only, "only", "patterns of scenarios, such as own/64,one/* (default: all)")
	flags.Var(&contenders, "contender", "patterns of contenders, such as holdfast,raw* (default: all)")
	rounds := flags.Int("rounds", 5, "number of rounds for each contender")
	budget := flags.Duration("time", time.Second, "duration of each measurement in a round")
	benchfmt := flags.Bool("benchfmt", false, "print every round in Go's benchmark format, which benchstat compares")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	var all []*bench.Engine
	var err error
	if *url == "" {
		all, err = localEngines(ctx, names, func(engine string, err error) { fmt.Fprintf(progress, "%s is not measured: %v\n", engine, err) })
	} else {
		var e *bench.Engine
		e, err = openEngine(ctx, *url)
		all = append(all, e)
	}
	if err != nil {
		return err
	}
	report, err := bench.Run(ctx, all, bench.Options{
		Rounds: *rounds, Budget: *budget, Only: only, Contenders: contenders, Progress: progress,
	})
	err = errors.Join(err, closeEngines(all))
	if report == nil {
		return err
	}
	write := bench.Table
	if *benchfmt {
		write = bench.Write
	}
	return errors.Join(err, write(out, report), report.Verdict())
}

// list is a flag with values that commas separate.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

// Set adds the values.
func (l *list) Set(text string) error {
	*l = append(*l, strings.Split(text, ",")...)
	return nil
}
