package bench

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Table writes the report for people: a table for each scenario of each engine.
//
// Errors: those of w.
func Table(w io.Writer, r *Report) error {
	out := &errWriter{w: w}
	fmt.Fprintf(out, "holdfast bench %s, commit %s, %s\n", r.Version, cmp.Or(r.Commit, "unknown"), r.At.Format(time.RFC3339))
	m := r.Machine
	fmt.Fprintf(out, "%s/%s, %d cores%s, %s, load %.2f before; medians of %d rounds of %s\n",
		m.OS, m.Arch, m.Cores, prefixed(", ", m.CPU), m.Go, m.LoadFrom, r.Rounds, r.Budget)
	for _, e := range r.Engines {
		fmt.Fprintf(out, "%s%s%s\n", e.Name, prefixed(" ", e.Version), map[bool]string{true: ", started for this run"}[e.Local])
	}
	for _, text := range r.Missing {
		fmt.Fprintf(out, "not measured: %s\n", text)
	}
	for i, x := range r.Results {
		if i == 0 || x.Engine != r.Results[i-1].Engine || x.Scenario != r.Results[i-1].Scenario {
			r.section(out, x.Engine, x.Scenario)
		}
	}
	r.verdicts(out)
	return out.err
}

// verdicts writes the comparison with the targets.
func (r *Report) verdicts(w io.Writer) {
	if len(r.Verdicts) == 0 {
		return
	}
	fmt.Fprint(w, "\ntargets\n")
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i := range r.Verdicts {
		v := &r.Verdicts[i]
		if v.Measured {
			fmt.Fprintf(tw, "  %s\t%s %s\t%s\t%s\n", v.State(), v.Engine, v.Label(), v.Wanted(), v.Got())
		}
	}
	_ = tw.Flush() // w keeps its first error
	missing := 0
	for i := range r.Verdicts {
		if !r.Verdicts[i].Measured {
			missing++
		}
	}
	if missing > 0 {
		fmt.Fprintf(w, "  %d targets are about what was not measured\n", missing)
	}
}

// section writes one scenario on one engine.
func (r *Report) section(w io.Writer, engine, scenario string) {
	results := r.Section(engine, scenario)
	fmt.Fprintf(w, "\n%s, %s: %s\n", engine, scenario, results[0].Title)
	columns := Columns(results)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(tw, "\tours/it\t")
	for _, c := range columns {
		fmt.Fprint(tw, c.Label, "\t")
	}
	fmt.Fprintln(tw)
	for i := range results {
		x := &results[i]
		fmt.Fprintf(tw, "%s\t%s\t", x.Contender, r.against(x))
		for _, c := range columns {
			text := "-"
			if v, ok := x.Figures[c.Metric]; ok {
				text = c.Unit.Format(v)
			}
			fmt.Fprint(tw, text, "\t")
		}
		fmt.Fprintln(tw)
	}
	_ = tw.Flush() // w keeps its first error
	for _, x := range results {
		if x.Failed != "" {
			fmt.Fprintf(w, "  %s FAILED: %s\n", x.Contender, x.Failed)
		}
	}
}

// against returns how many times faster ours is than x.
func (r *Report) against(x *Result) string {
	if x.Kind == KindOurs {
		return ""
	}
	for _, other := range r.Section(x.Engine, x.Scenario) {
		if other.Kind == KindOurs {
			if ratio, ok := Ratio(&other, x, PairsPerSecond); ok {
				return fmt.Sprintf("%.2fx", ratio)
			}
		}
	}
	return "-"
}

// Section returns the results of one scenario on one engine.
func (r *Report) Section(engine, scenario string) []Result {
	var section []Result
	for _, x := range r.Results {
		if x.Engine == engine && x.Scenario == scenario {
			section = append(section, x)
		}
	}
	return section
}

// Columns returns the figures that any of the results has.
func Columns(results []Result) []MetricInfo {
	var columns []MetricInfo
	for _, info := range Metrics() {
		for _, x := range results {
			if _, ok := x.Figures[info.Metric]; ok {
				columns = append(columns, info)
				break
			}
		}
	}
	return columns
}

// Format writes a figure for people.
func (u Unit) Format(v float64) string {
	switch u {
	case UnitSeconds:
		return shortDuration(v)
	case UnitRatio:
		return strconv.FormatFloat(v, 'f', 3, 64)
	case UnitBytes:
		return thousands(v) + " B"
	case UnitCount:
		return thousands(v)
	default:
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
}

func shortDuration(seconds float64) string {
	switch d := seconds; {
	case d >= 1:
		return fmt.Sprintf("%.2f s", d)
	case d >= 1e-3:
		return fmt.Sprintf("%.2f ms", d*1e3)
	default:
		return fmt.Sprintf("%.1f µs", d*1e6)
	}
}

func thousands(v float64) string {
	text := strconv.FormatFloat(v, 'f', 0, 64)
	sign := ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return sign + text
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// errWriter keeps the first error.
type errWriter struct {
	w   io.Writer
	err error
}

func (e *errWriter) Write(p []byte) (int, error) {
	if e.err != nil {
		return 0, e.err
	}
	n, err := e.w.Write(p)
	if err != nil {
		e.err = fmt.Errorf("write the report: %w", err)
	}
	return n, e.err
}
