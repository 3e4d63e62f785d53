package e2e_test

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/bench"
)

// The tables of docs/choosing.md are made from bench/results: of each engine its newest run. The ratios
// are those of all runs. An engine that was not measured has no row.
func TestMeasuredTable(t *testing.T) {
	t.Parallel()
	reports, err := readReports("../../../bench/results")
	if err != nil {
		t.Fatal(err)
	}
	runs := byEngine(reports)
	if len(runs) == 0 {
		t.Fatal("nothing was measured")
	}
	generated(t, "../../../docs/choosing.md", "measured", measuredTable(runs))
	generated(t, "../../../docs/choosing.md", "articles", articlesTable(runs))
	generated(t, "../../../README.md", "ratios", ratioTable(runs, "redis", "etcd", "postgres", "mysql", "kubernetes"))
	generated(t, "../../../docs/performance/README.md", "ratios", ratioTable(runs))
}

// generated compares a part of a document with what it is made from, or writes it.
func generated(t *testing.T, path, part, body string) {
	t.Helper()
	rewritten(t, path, part, func(text string) (string, error) { return replaceGenerated(text, part, body) })
}

// rewritten checks that a file is as rewrite returns it, or writes it with -update.
func rewritten(t *testing.T, path, part string, rewrite func(string) (string, error)) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := rewrite(string(text))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if want == string(text) {
		return
	}
	if !*update {
		t.Errorf("%s: the part %q differs from what it is generated from; run make generate to update it", path, part)
		return
	}
	if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
		t.Fatal(err)
	}
}

func readReports(dir string) ([]*bench.Report, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	var all []*bench.Report
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		r, err := bench.Read(bytes.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// measured is what was measured of ours on an engine.
type measured struct {
	engine string
	runs   []*bench.Report // the newest one last
}

func (m measured) newest() *bench.Report { return m.runs[len(m.runs)-1] }

// byEngine returns the reports of each engine that has any result of ours, in the order of
// the capability table; engines that the table does not have come last.
func byEngine(reports []*bench.Report) []measured {
	reports = slices.SortedFunc(slices.Values(reports), func(a, b *bench.Report) int { return a.At.Compare(b.At) })
	runs := make(map[string][]*bench.Report)
	for _, r := range reports {
		for i := range r.Results {
			x := &r.Results[i]
			if x.Contender == "holdfast" && len(x.Figures) > 0 && !slices.Contains(runs[x.Engine], r) {
				runs[x.Engine] = append(runs[x.Engine], r)
			}
		}
	}
	order := []string{"memory", "sqlite", "redis", "redlock", "etcd", "zookeeper", "consul", "postgres", "mysql", "kubernetes", "holdfast"}
	place := func(engine string) int {
		if i := slices.Index(order, engine); i >= 0 {
			return i
		}
		return len(order)
	}
	all := make([]measured, 0, len(runs))
	for engine, those := range runs {
		all = append(all, measured{engine, those})
	}
	slices.SortFunc(all, func(a, b measured) int {
		if d := place(a.engine) - place(b.engine); d != 0 {
			return d
		}
		return strings.Compare(a.engine, b.engine)
	})
	return all
}

// figure returns one of our figures; "–" where it was not measured.
func (m measured) figure(scenario string, metric bench.Metric) string {
	return m.figureOf("holdfast", scenario, metric)
}

func (m measured) figureOf(contender, scenario string, metric bench.Metric) string {
	if x := m.newest().Find(m.engine, scenario, contender); x != nil {
		if v, ok := x.Figures[metric]; ok {
			return unitOf(metric).Format(v)
		}
	}
	return "–"
}

// bare is the contender that runs the commands of the store that a lock needs at least.
func (m measured) bare() string {
	if m.engine == "redis" {
		return "raw compare" // "raw" would delete the lock of another client
	}
	return "raw"
}

func unitOf(metric bench.Metric) bench.Unit {
	for _, info := range bench.Metrics() {
		if info.Metric == metric {
			return info.Unit
		}
	}
	return bench.UnitRatio
}

// ratioTable compares us with the bare commands and with another lock of each store: of those named,
// or of all. It has a figure of each run.
func ratioTable(runs []measured, only ...string) string {
	peers := map[string]string{
		"redis": "bsm/redislock", "redlock": "redsync", "etcd": "etcd concurrency", "zookeeper": "go-zookeeper", "consul": "consul/api",
		"postgres": "cirello pglock", "kubernetes": "client-go",
	}
	var b strings.Builder
	b.WriteString("| store | one caller: Holdfast / bare commands | Holdfast / another lock | 64 callers, a lock each: Holdfast / bare commands | Holdfast / another lock | the other lock |\n")
	b.WriteString("| --- | --- | --- | --- | --- | --- |\n")
	for _, m := range runs {
		if len(only) > 0 && !slices.Contains(only, m.engine) {
			continue
		}
		var ratios []string
		for _, scenario := range []string{"own/1", "own/64"} {
			ratios = append(ratios, m.ratio(scenario, m.bare()), m.ratio(scenario, peers[m.engine]))
		}
		if slices.ContainsFunc(ratios, func(r string) bool { return r != "–" }) {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", m.engine, strings.Join(ratios, " | "), cmp.Or(peers[m.engine], "–"))
		}
	}
	return b.String()
}

// ratio returns our pairs a second divided by those of another contender, in each run that has both.
func (m measured) ratio(scenario, other string) string {
	var ratios []string
	for _, run := range m.runs {
		if r, ok := bench.Ratio(run.Find(m.engine, scenario, "holdfast"), run.Find(m.engine, scenario, other), bench.PairsPerSecond); ok {
			ratios = append(ratios, strconv.FormatFloat(r, 'f', 2, 64))
		}
	}
	return cmp.Or(strings.Join(ratios, ", "), "–")
}

func measuredTable(runs []measured) string {
	var b strings.Builder
	b.WriteString("| store | a free lock, alone | the bare commands, alone | free locks a second, 64 goroutines | hand-over, 50 on one lock | " +
		"99 of 100 of those wait less than | fairness of the 50 (Jain) | requests a second to keep 10,000 locks | requests a second of 1,000 waiters |\n")
	b.WriteString("|" + strings.Repeat(" --- |", 9) + "\n")
	for _, m := range runs {
		fmt.Fprintf(&b, "| %s |", m.engine)
		for _, c := range []struct {
			contender, scenario string
			metric              bench.Metric
		}{
			{"holdfast", "own/1", bench.PairP50},
			{m.bare(), "own/1", bench.PairP50},
			{"holdfast", "own/64", bench.PairsPerSecond},
			{"holdfast", "one/50", bench.HandOverP50},
			{"holdfast", "one/50", bench.WaitP99},
			{"holdfast", "one/50", bench.Fairness},
			{"holdfast", "renew/10000", bench.RequestsPerSecond},
			{"holdfast", "idle/1000", bench.RequestsPerSecond},
		} {
			fmt.Fprintf(&b, " %s |", m.figureOf(c.contender, c.scenario, c.metric))
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	for _, m := range runs {
		version := "–"
		report := m.newest()
		for _, e := range report.Engines {
			if e.Name == m.engine && e.Version != "" {
				version = e.Version
			}
		}
		commit := report.Commit
		fmt.Fprintf(&b, "- %s: version %s, measured on %s at commit %s, %d cores for clients and server, median of %d rounds\n",
			m.engine, version, report.At.UTC().Format(time.DateOnly), commit[:min(len(commit), 8)], report.Cores, report.Rounds)
	}
	return b.String()
}

// articlesTable has what a much-read article estimates for four kinds of lock, and what we measured on
// the stores of that kind.
func articlesTable(runs []measured) string {
	var b strings.Builder
	b.WriteString("| an article's estimate | latency | locks a second | ours, on | a free lock, alone | free locks a second, 64 goroutines |\n")
	b.WriteString("|" + strings.Repeat(" --- |", 6) + "\n")
	for _, c := range []struct{ kind, latency, rate, engine string }{
		{"a lock in a database", "100–200 ms", "100", "postgres"},
		{"a lock in a database", "100–200 ms", "100", "mysql"},
		{"Redis", "1–5 ms", "10,000", "redis"},
		{"Redlock", "5–15 ms", "5,000", "redlock"},
		{"ZooKeeper", "10–50 ms", "1,000", "zookeeper"},
	} {
		m := measured{engine: c.engine, runs: []*bench.Report{{}}}
		if i := slices.IndexFunc(runs, func(m measured) bool { return m.engine == c.engine }); i >= 0 {
			m = runs[i]
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", c.kind, c.latency, c.rate, c.engine,
			m.figure("own/1", bench.PairP50), m.figure("own/64", bench.PairsPerSecond))
	}
	return b.String()
}
