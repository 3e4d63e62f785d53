package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"
)

// Report is the result of a run.
type Report struct {
	// Schema is the version of the document's format.
	Schema  int           `json:"schema"`
	At      time.Time     `json:"at"`
	Version string        `json:"version"`
	Commit  string        `json:"commit"`
	Machine Machine       `json:"machine"`
	Rounds  int           `json:"rounds"`
	Budget  time.Duration `json:"budget_ns"` // of one trial
	Engines []EngineInfo  `json:"engines"`
	// Missing names the engines that were not measured, and why.
	Missing []string `json:"missing,omitempty"`
	Results []Result `json:"results"`
	// Verdicts are the targets of the measured engines, with what was measured.
	Verdicts []Verdict `json:"targets"`
}

// Machine is the machine of the run.
type Machine struct {
	OS       string  `json:"os"`
	Arch     string  `json:"arch"`
	CPU      string  `json:"cpu,omitempty"`
	Cores    int     `json:"cores"`
	Go       string  `json:"go"`
	LoadFrom float64 `json:"load_before"` // of the last minute before the run
}

// EngineInfo is an engine that was measured.
type EngineInfo struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Local   bool   `json:"local"`
}

// Result is what one contender did in one scenario.
type Result struct {
	Engine    string    `json:"engine"`
	Scenario  string    `json:"scenario"`
	Title     string    `json:"title"`
	Contender string    `json:"contender"`
	Kind      Kind      `json:"kind"`
	Rounds    []Figures `json:"rounds"`
	Figures   Figures   `json:"figures"`
	// Failed says why there are fewer rounds than requested.
	Failed string `json:"failed,omitempty"`
}

// JSON writes the report as indented JSON, which encoding/json can decode.
//
// Errors: those of w.
func JSON(w io.Writer, r *Report) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
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

// Doubles returns how often one of our locks was held twice at the same time, plus how often a
// token was not greater than the one before. It must be 0.
func (r *Report) Doubles() float64 {
	sum := 0.0
	for _, x := range r.Results {
		if x.Kind == KindOurs || x.Kind == KindVariant {
			sum += x.Figures[DoubleHolds] + x.Figures[TokenFaults]
		}
	}
	return sum
}
