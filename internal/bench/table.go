package bench

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"
)

// Table writes the report for people: a table for each scenario of each engine.
//
// Errors: those of w.
func Table(w io.Writer, r *Report) error {
	out := new(bytes.Buffer)
	fmt.Fprintf(out, "commit %s, %s; %d cores%s, load %.2f before; medians of %d rounds of %s\n",
		r.Commit, r.At.Format(time.RFC3339), r.Cores, prefixed(", ", r.CPU), r.Load, r.Rounds, r.Budget)
	for _, e := range r.Engines {
		fmt.Fprintf(out, "%s%s\n", e.Name, prefixed(" ", e.Version))
	}
	for i, x := range r.Results {
		if i == 0 || x.Engine != r.Results[i-1].Engine || x.Scenario != r.Results[i-1].Scenario {
			r.section(out, x.Engine, x.Scenario)
		}
	}
	_, err := out.WriteTo(w)
	return err //nolint:wrapcheck // w's own
}

// section writes one scenario on one engine.
func (r *Report) section(w *bytes.Buffer, engine, scenario string) {
	results := r.contenders(engine, scenario)
	fmt.Fprintf(w, "\n%s, %s: %s\n", engine, scenario, results[0].Title)
	columns := columnsOf(results)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	alone := len(results) == 1
	fmt.Fprint(tw, "\t")
	if !alone {
		fmt.Fprint(tw, "ours/it\t")
	}
	for _, c := range columns {
		fmt.Fprint(tw, c.Label, "\t")
	}
	fmt.Fprintln(tw)
	for i := range results {
		x := &results[i]
		fmt.Fprintf(tw, "%s\t", x.Contender)
		if !alone {
			fmt.Fprintf(tw, "%s\t", r.against(x))
		}
		for _, c := range columns {
			text := "-"
			if v, ok := x.Figures[c.Metric]; ok {
				text = c.Unit.Format(v)
			}
			fmt.Fprint(tw, text, "\t")
		}
		fmt.Fprintln(tw)
	}
	_ = tw.Flush() // a buffer has no errors
	for _, x := range results {
		if x.Failed != "" {
			fmt.Fprintf(w, "  %s FAILED: %s\n", x.Contender, x.Failed)
		}
	}
}

// against returns how many times faster ours is than x.
func (r *Report) against(x *Result) string {
	if x.Contender == "holdfast" {
		return ""
	}
	if ratio, ok := Ratio(r.Find(x.Engine, x.Scenario, "holdfast"), x, PairsPerSecond); ok {
		return fmt.Sprintf("%.2fx", ratio)
	}
	return "-"
}

// contenders returns the results of one scenario on one engine.
func (r *Report) contenders(engine, scenario string) []Result {
	var section []Result
	for _, x := range r.Results {
		if x.Engine == engine && x.Scenario == scenario {
			section = append(section, x)
		}
	}
	return section
}

// columnsOf returns the figures that any of the results has.
func columnsOf(results []Result) []MetricInfo {
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
	case UnitCount:
	}
	return thousands(v)
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
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}
