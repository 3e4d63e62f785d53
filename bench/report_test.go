package bench_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/bench"
)

// sample is a report in which ours is twice as fast as the bare commands, and slower than one peer.
func sample() *bench.Report {
	figures := func(pairs, p50 float64) bench.Figures {
		return bench.Figures{bench.PairsPerSecond: pairs, bench.PairP50: p50, bench.DoubleHolds: 0, bench.Grants: 1000}
	}
	result := func(name string, kind bench.Kind, pairs, p50 float64) bench.Result {
		rounds := []bench.Figures{figures(pairs, p50), figures(pairs*1.1, p50)}
		return bench.Result{
			Engine: "redis", Scenario: "own/64", Title: "64 <goroutines>", Contender: name, Kind: kind,
			Rounds: rounds, Figures: figures(pairs, p50),
		}
	}
	r := bench.NewReport(bench.Options{Rounds: 2, Budget: time.Second})
	r.Engines = []bench.EngineInfo{{Name: "redis", Version: "7.0.15", Local: true}}
	r.Missing = []string{"etcd: etcd is not there"}
	r.Results = []bench.Result{
		result("holdfast", bench.KindOurs, 20_000, 1e-3), result("raw", bench.KindRaw, 10_000, 2e-3), result("bsm/redislock", bench.KindPeer, 16_000, 4e-3),
	}
	r.Results[2].Failed = "out of <ink>"
	r.Verdicts = bench.Judge(r, bench.Targets())
	return r
}

func TestJSONRoundTrip(t *testing.T) {
	t.Parallel()
	want := sample()
	var text bytes.Buffer
	if err := bench.JSON(&text, want); err != nil {
		t.Fatal(err)
	}
	var got bench.Report
	dec := json.NewDecoder(&text)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(&got, want) {
		t.Errorf("read back:\n%+v\nwritten:\n%+v", &got, want)
	}
}

// The page is well-formed, has a plot for each figure, and loads nothing.
func TestHTML(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	if err := bench.HTML(&text, sample()); err != nil {
		t.Fatal(err)
	}
	page := text.String()
	for _, want := range []string{"bsm/redislock", "64 &lt;goroutines&gt;", "out of &lt;ink&gt;", "<svg", "20,000", "2.00x", "1.25x", "etcd is not there", "MISSED", "met"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not have %q", want)
		}
	}
	if out := regexp.MustCompile(`(?i)https?://|<script|<link|@import|url\(|src=`).FindString(page); out != "" {
		t.Errorf("the page has %q", out)
	}
	if n := strings.Count(page, "<figure>"); n != 2 {
		t.Errorf("%d plots, want 2", n)
	}
	if n := strings.Count(page, "<circle"); n != 2*3*2 {
		t.Errorf("%d rounds in the plots, want 12", n)
	}
	svg := page[strings.Index(page, "<svg"):]
	svg = svg[:strings.Index(svg, "</svg>")+len("</svg>")]
	dec := xml.NewDecoder(strings.NewReader(svg))
	for {
		_, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the plot is not well-formed: %v\n%s", err, svg)
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	if err := bench.Table(&text, sample()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"redis 7.0.15, started for this run", "not measured: etcd: etcd is not there", "2.00x", "20,000", "1.00 ms", "bsm/redislock FAILED: out of <ink>"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the table does not have %q:\n%s", want, text.String())
		}
	}
	broken := errors.New("no paper")
	if err := bench.Table(failing{broken}, sample()); !errors.Is(err, broken) {
		t.Errorf("a writer that fails: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestJudge(t *testing.T) {
	t.Parallel()
	target := func(scenario string, m bench.Metric, over string, atMost bool, bound float64) bench.Target {
		return bench.Target{Engine: "redis", Scenario: scenario, Metric: m, Over: over, AtMost: atMost, Bound: bound}
	}
	for _, c := range []struct {
		name          string
		target        bench.Target
		measured, met bool
	}{
		{"ratio reached", target("own/64", bench.PairsPerSecond, "raw", false, 2), true, true},
		{"ratio not reached", target("own/64", bench.PairsPerSecond, "raw", false, 2.1), true, false},
		{"ratio low enough", target("own/64", bench.PairP50, "raw", true, 0.5), true, true},
		{"ratio too high", target("own/64", bench.PairP50, "raw", true, 0.4), true, false},
		{"alone, reached", target("own/64", bench.PairsPerSecond, "", false, 20_000), true, true},
		{"alone, too high", target("own/64", bench.PairsPerSecond, "", true, 19_999), true, false},
		{"no contender to compare with", target("own/64", bench.PairsPerSecond, "redsync", false, 1), false, false},
		{"not measured", target("one/8", bench.PairsPerSecond, "", false, 1), false, false},
		{"another figure", target("own/64", bench.Fairness, "", true, 1), false, false},
	} {
		v := bench.Judge(sample(), []bench.Target{c.target})[0]
		if v.Measured != c.measured || v.Met != c.met {
			t.Errorf("%s: measured %t, met %t: %+v", c.name, v.Measured, v.Met, v)
		}
	}
	other := target("own/64", bench.PairsPerSecond, "", false, 1)
	other.Engine = "etcd"
	if v := bench.Judge(sample(), []bench.Target{other}); len(v) != 0 {
		t.Errorf("an engine that was not there: %+v", v)
	}
	failed := sample()
	failed.Results[0].Failed = "lost"
	if v := bench.Judge(failed, []bench.Target{target("own/64", bench.PairsPerSecond, "", false, 1)}); v[0].Measured {
		t.Errorf("ours failed: %+v", v)
	}
}

// Every target names a scenario and a figure that exist.
func TestTargets(t *testing.T) {
	t.Parallel()
	scenarios := make(map[string]bool)
	for _, s := range bench.Scenarios() {
		if scenarios[s.ID] {
			t.Errorf("there are two scenarios %s", s.ID)
		}
		scenarios[s.ID] = true
	}
	metrics := make(map[bench.Metric]bool)
	for _, m := range bench.Metrics() {
		if metrics[m.Metric] {
			t.Errorf("there are two figures %s", m.Metric)
		}
		metrics[m.Metric] = true
	}
	for _, target := range bench.Targets() {
		if !scenarios[target.Scenario] || !metrics[target.Metric] {
			t.Errorf("%s: there is no such scenario or figure", target.Label())
		}
	}
}
