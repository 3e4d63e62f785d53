package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Write writes the report in the format of Go's benchmarks, which benchstat compares: a line for each round,
// named BenchmarkLock/STORE/SCENARIO/by=CONTENDER-CORES. A unit is the name of a figure. What differs from run to
// run is in comments, because benchstat compares only runs of one configuration.
//
// Errors: those of w.
func Write(w io.Writer, r *Report) error {
	out := new(bytes.Buffer)
	fmt.Fprintf(out, "# date: %s\n# commit: %s\n# load: %.2f\n# rounds: %d of %s\n", r.At.Format(time.RFC3339), r.Commit, r.Load, r.Rounds, r.Budget)
	for _, e := range r.Engines {
		fmt.Fprintf(out, "# store: %s %s\n", e.Name, e.Version)
	}
	fmt.Fprintf(out, "goos: %s\ngoarch: %s\ncpu: %s\n", runtime.GOOS, runtime.GOARCH, r.CPU)
	for _, x := range r.Results {
		if x.Failed != "" {
			fmt.Fprintf(out, "# failed: %s %s %s: %s\n", x.Engine, x.Scenario, x.Contender, strings.ReplaceAll(x.Failed, "\n", "; "))
		}
		for _, f := range x.Rounds {
			name := strings.ReplaceAll(x.Engine+"/"+x.Scenario+"/by="+x.Contender, " ", "_")
			fmt.Fprintf(out, "BenchmarkLock/%s-%d\t%.0f", name, r.Cores, max(1, f[Grants]))
			for _, info := range Metrics() {
				if v, ok := f[info.Metric]; ok {
					fmt.Fprintf(out, "\t%s %s", strconv.FormatFloat(v*info.Unit.scale(), 'g', 5, 64), info.unit())
				}
			}
			fmt.Fprintln(out)
		}
	}
	_, err := out.WriteTo(w)
	return err //nolint:wrapcheck // w's own
}

// scale is what a value is multiplied with: benchmarks have times in nanoseconds.
func (u Unit) scale() float64 {
	if u == UnitSeconds {
		return float64(time.Second)
	}
	return 1
}

// unit returns the name of the figure in the format of benchmarks, which has no underscores.
func (m MetricInfo) unit() string {
	name := strings.ReplaceAll(string(m.Metric), "_", "-")
	if m.Unit == UnitSeconds {
		name += "-ns"
	}
	return name
}

// Read reads what Write wrote. Of each result it has the rounds and the figures.
//
// Errors: those of in; a line that Write did not write.
func Read(in io.Reader) (*Report, error) {
	r := &Report{}
	units := make(map[string]MetricInfo)
	for _, info := range Metrics() {
		units[info.unit()] = info
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		key, value, _ := strings.Cut(strings.TrimPrefix(lines.Text(), "# "), ": ")
		var err error
		switch {
		case strings.HasPrefix(key, "BenchmarkLock/"):
			err = r.readRound(strings.Split(key, "\t"), units)
		case key == "date":
			r.At, err = time.Parse(time.RFC3339, value)
		case key == "commit":
			r.Commit = value
		case key == "load":
			_, err = fmt.Sscan(value, &r.Load)
		case key == "rounds":
			var budget string
			if _, err = fmt.Sscanf(value, "%d of %s", &r.Rounds, &budget); err == nil {
				r.Budget, err = time.ParseDuration(budget)
			}
		case key == "store":
			name, version, _ := strings.Cut(value, " ")
			r.Engines = append(r.Engines, EngineInfo{name, version})
		case key == "cpu":
			r.CPU = value
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", lines.Text(), err)
		}
	}
	for i := range r.Results {
		r.Results[i].Figures = merge(r.Results[i].Rounds)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the report: %w", err)
	}
	return r, nil
}

// readRound adds the figures of a line to the result that it names.
func (r *Report) readRound(fields []string, units map[string]MetricInfo) error {
	name := strings.ReplaceAll(strings.TrimPrefix(fields[0], "BenchmarkLock/"), "_", " ")
	cores := strings.LastIndexByte(name, '-')
	where, contender, ok := strings.Cut(name[:max(cores, 0)], "/by=")
	engine, scenario, ok2 := strings.Cut(where, "/")
	if !ok || !ok2 || len(fields) < 2 {
		return strconv.ErrSyntax
	}
	var err error
	if r.Cores, err = strconv.Atoi(name[cores+1:]); err != nil {
		return err //nolint:wrapcheck // Read adds the line
	}
	f := make(Figures)
	for _, field := range fields[2:] {
		number, unit, _ := strings.Cut(field, " ")
		v, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return err //nolint:wrapcheck // Read adds the line
		}
		if info, ok := units[unit]; ok {
			f[info.Metric] = v / info.Unit.scale()
		}
	}
	x := r.Find(engine, scenario, contender)
	if x == nil {
		r.Results = append(r.Results, Result{Engine: engine, Scenario: scenario, Contender: contender})
		x = &r.Results[len(r.Results)-1]
	}
	x.Rounds = append(x.Rounds, f)
	return nil
}
