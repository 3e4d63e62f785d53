package bench

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// Report is the result of a run.
type Report struct {
	At      time.Time
	Commit  string        // "unknown" if the build does not say
	CPU     string        // the model of the processor; empty if it is unknown
	Cores   int           //
	Load    float64       // load average of the last minute before the run
	Rounds  int           //
	Budget  time.Duration // of one trial
	Engines []EngineInfo
	Results []Result
}

// EngineInfo is an engine that was measured.
type EngineInfo struct{ Name, Version string }

// Result is what one contender did in one scenario.
type Result struct {
	Engine    string
	Scenario  string
	Title     string
	Contender string
	Ours      bool
	Rounds    []Figures // the last may have only counts of the server's work
	Figures   Figures
	// Failed says why there are fewer rounds than requested.
	Failed string
}

// newReport returns an empty report of a run that begins now on this machine.
func newReport(o Options) *Report {
	r := &Report{At: time.Now().UTC().Truncate(time.Second), Commit: "unknown", Rounds: o.Rounds, Budget: o.Budget, CPU: cpuModel(), Cores: runtime.NumCPU()}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(text), &r.Load) // 0 if it is unknown
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				r.Commit = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				r.Commit += "+changes"
			}
		}
	}
	return r
}

// cpuModel returns Linux's name of the processor; empty elsewhere.
func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Find returns the result of a contender; nil if it was not measured.
func (r *Report) Find(engine, scenario, contender string) *Result {
	i := slices.IndexFunc(r.Results, func(x Result) bool {
		return x.Engine == engine && x.Scenario == scenario && x.Contender == contender
	})
	if i < 0 {
		return nil
	}
	return &r.Results[i]
}

// Ratio returns the median of a's figure divided by b's, round by round, so that other load on the
// machine in a round affects both. It skips rounds that do not have both figures, and reports false
// if no round has both.
func Ratio(a, b *Result, m Metric) (float64, bool) {
	if a == nil || b == nil {
		return 0, false
	}
	var ratios []float64
	for i := range min(len(a.Rounds), len(b.Rounds)) {
		x, ok := a.Rounds[i][m]
		y, ok2 := b.Rounds[i][m]
		if ok && ok2 && y > 0 {
			ratios = append(ratios, x/y)
		}
	}
	return Median(ratios), len(ratios) > 0
}

// Verdict returns an error if one of our locks was held twice at the same time, if a token was not greater
// than the one before, and if nothing was measured.
func (r *Report) Verdict() error {
	sum := 0.0
	for _, x := range r.Results {
		if x.Ours {
			sum += x.Figures[DoubleHolds] + x.Figures[TokenFaults]
		}
	}
	switch {
	case sum > 0:
		return fmt.Errorf("holdfast granted a lock to two clients at the same time, or a token that did not increase, %.0f times", sum)
	case len(r.Results) == 0:
		return errors.New("nothing was measured: no scenario, contender or engine matches the flags")
	}
	return nil
}
