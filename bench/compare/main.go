// Command compare measures two builds of "holdfast bench" in turns, and prints the gain of each
// figure: above 1, the new build is better. A machine changes its speed from minute to minute;
// builds that take turns are both affected.
//
//	go run ./bench/compare -before '/tmp/old bench' -after 'bin/holdfast bench' -engine redis,etcd
//
// Flags after "--" are passed to both builds, such as "-- --only 'own/*'". Each round starts a new
// server of the engine for each build; the build that went first in one round goes second
// in the next. Exit status: 0; 1 when a build failed, or the gain of a row is below -least.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/holdfast-io/holdfast/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		stop()
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// build is one of the two programs.
type build struct {
	name    string
	command []string
	reports []*bench.Report // of one engine, one for each round
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	before := flags.String("before", "", "the command of the old build, such as '/tmp/old bench'")
	after := flags.String("after", "bin/holdfast bench", "the command of the new build")
	engines := flags.String("engine", "memory", "engines, separated by commas")
	rounds := flags.Int("rounds", 5, "how often each build is measured on each engine")
	least := flags.Float64("least", 0, "fail when the gain of a row is below this")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *before == "" {
		return errors.New("-before is missing")
	}
	if *rounds < 1 {
		return fmt.Errorf("-rounds is %d, and must be at least 1", *rounds)
	}
	dir, err := os.MkdirTemp("", "holdfast-compare-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a folder of the system's own
	var slow []string
	for engine := range strings.SplitSeq(*engines, ",") {
		builds := []*build{{name: "before", command: strings.Fields(*before)}, {name: "after", command: strings.Fields(*after)}}
		for round := range *rounds {
			first := round % 2
			for _, b := range []*build{builds[first], builds[1-first]} {
				file := filepath.Join(dir, engine+"-"+b.name+"-"+strconv.Itoa(round)+".json")
				if err := b.measure(ctx, engine, file, flags.Args()); err != nil {
					return fmt.Errorf("%s, %s, round %d: %w", engine, b.name, round+1, err)
				}
			}
		}
		rows := compare(builds[0].reports, builds[1].reports)
		write(out, builds, rows)
		for _, r := range rows {
			if r.gain < *least {
				slow = append(slow, fmt.Sprintf("%s %s %s %.2f", r.engine, r.scenario, r.figure, r.gain))
			}
		}
	}
	if len(slow) > 0 {
		return fmt.Errorf("below %.2f of before: %s", *least, strings.Join(slow, ", "))
	}
	return nil
}

// measure runs the build once and keeps its report.
func (b *build) measure(ctx context.Context, engine, file string, more []string) error {
	args := append([]string{"--engine", engine, "--contender", "holdfast", "--rounds", "1", "--out", file}, more...)
	cmd := exec.CommandContext(ctx, b.command[0], append(slices.Clone(b.command[1:]), args...)...) //nolint:gosec // the caller's own command
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	text, err := os.ReadFile(file) //nolint:gosec // the folder is ours
	if err != nil {
		return err
	}
	var report bench.Report
	if err := json.Unmarshal(text, &report); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	b.reports = append(b.reports, &report)
	return nil
}

// measures are the figures that are compared. What stands while nothing is acquired or released has no
// pairs, and should be small.
func measures() []measure {
	return []measure{
		{bench.PairsPerSecond, "pairs/s", false},
		{bench.RequestsPerSecond, "requests/s", true},
		{bench.BytesEach, "bytes each", true},
		{bench.Goroutines, "goroutines", true},
	}
}

type measure struct {
	metric bench.Metric
	title  string
	small  bool
}

// row is one figure of a scenario. before and after are medians of the rounds. gain is the median of the
// ratios of the rounds, and above 1 when the new build is better; lowest and highest are those of single
// rounds.
type row struct {
	engine, scenario, figure string
	before, after            float64
	gain, lowest, highest    float64
}

// compare pairs the reports by round. A figure that a round lacks has no row, and where pairs are counted
// they are the only one.
func compare(before, after []*bench.Report) []row {
	var rows []row
	for _, result := range before[0].Results {
		for _, m := range measures() {
			var old, fresh, gains []float64
			for round := range before {
				a, ok := figure(before[round], &result, m.metric)
				b, also := figure(after[round], &result, m.metric)
				if !ok || !also || !m.small && a == 0 {
					continue
				}
				old, fresh = append(old, a), append(fresh, b)
				if m.small {
					// Either may be 0, or below it when the heap shrank beside it.
					gains = append(gains, (max(a, 0)+1)/(max(b, 0)+1))
				} else {
					gains = append(gains, b/a)
				}
			}
			if len(gains) < len(before) {
				continue
			}
			rows = append(rows, row{
				result.Engine, result.Scenario, m.title, bench.Median(old), bench.Median(fresh),
				bench.Median(gains), slices.Min(gains), slices.Max(gains),
			})
			if !m.small {
				break
			}
		}
	}
	return rows
}

func figure(r *bench.Report, of *bench.Result, m bench.Metric) (float64, bool) {
	found := r.Find(of.Engine, of.Scenario, of.Contender)
	if found == nil {
		return 0, false
	}
	v, ok := found.Figures[m]
	return v, ok
}

func write(out io.Writer, builds []*build, rows []row) {
	for _, b := range builds {
		r := b.reports[0]
		fmt.Fprintf(out, "%s: commit %s, %d rounds of %s, %d cores, load %.2f before\n",
			b.name, cmp.Or(r.Commit, "unknown"), len(b.reports), r.Budget, r.Machine.Cores, r.Machine.LoadFrom)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "engine\tscenario\tfigure\tbefore\tafter\tgain\tlowest\thighest\t")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%.0f\t%.0f\t%.2f\t%.2f\t%.2f\t\n",
			r.engine, r.scenario, r.figure, r.before, r.after, r.gain, r.lowest, r.highest)
	}
	_ = w.Flush()
	fmt.Fprintln(out)
}
