package bench

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
)

//go:embed page.html
var page string

// HTML writes the report as a self-contained page with plots.
//
// Errors: those of w.
func HTML(w io.Writer, r *Report) error {
	t, err := template.New("page").Parse(page)
	if err != nil {
		return fmt.Errorf("parse the page: %w", err)
	}
	view := pageView{Report: r}
	for i, x := range r.Results {
		if i == 0 || x.Engine != r.Results[i-1].Engine || x.Scenario != r.Results[i-1].Scenario {
			view.Sections = append(view.Sections, r.sectionView(x.Engine, x.Scenario))
		}
	}
	if err := t.Execute(w, view); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// pageView is the data of page.html.
type pageView struct {
	*Report

	Sections []sectionView
}

type sectionView struct {
	Engine, Scenario, Title string
	Columns                 []MetricInfo
	Rows                    []rowView
	Plots                   []plotView
}

type rowView struct {
	Contender string
	Ours      bool
	Against   string
	Cells     []string
	Failed    string
}

// plotView is one figure of all contenders: a bar for each contender, and a dot for each round.
type plotView struct {
	Label  string
	Log    bool
	Height int
	Bars   []barView
}

type barView struct {
	Name, Text string
	Ours       bool
	Y          int
	Width      float64
	Dots       []float64
}

// plotted returns the figures that are worth a plot.
func plotted() []Metric {
	return []Metric{PairsPerSecond, PairP50, WaitP99, HandOverP50, Fairness, Utilisation, RequestsPerPair, RequestsPerSecond, BytesEach, GoroutinesEach, CPU}
}

func (r *Report) sectionView(engine, scenario string) sectionView {
	results := r.Section(engine, scenario)
	v := sectionView{Engine: engine, Scenario: scenario, Title: results[0].Title, Columns: Columns(results)}
	for i := range results {
		x := &results[i]
		row := rowView{Contender: x.Contender, Ours: x.Kind == KindOurs, Against: r.against(x), Failed: x.Failed}
		for _, c := range v.Columns {
			text := "-"
			if value, ok := x.Figures[c.Metric]; ok {
				text = c.Unit.Format(value)
			}
			row.Cells = append(row.Cells, text)
		}
		v.Rows = append(v.Rows, row)
	}
	for _, m := range plotted() {
		for _, c := range v.Columns {
			if c.Metric == m {
				v.Plots = append(v.Plots, plot(c, results))
			}
		}
	}
	return v
}

// Sizes of a plot, in its own units.
const (
	barHeight = 22
	plotWidth = 300.0
	decades   = 30 // a greater factor between the largest and the smallest makes the scale logarithmic
)

func plot(c MetricInfo, results []Result) plotView {
	low, high := math.Inf(1), 0.0
	for _, x := range results {
		for _, f := range append([]Figures{x.Figures}, x.Rounds...) {
			if value := f[c.Metric]; value > 0 {
				low, high = min(low, value), max(high, value)
			}
		}
	}
	p := plotView{Label: c.Label, Log: high > decades*low}
	scale := func(value float64) float64 {
		switch {
		case value <= 0 || high <= 0:
			return 0
		case p.Log:
			// The smallest has a tenth of the width of a decade.
			return plotWidth * (math.Log10(value/low) + 0.1) / (math.Log10(high/low) + 0.1)
		default:
			return plotWidth * value / high
		}
	}
	for _, x := range results {
		value, ok := x.Figures[c.Metric]
		if !ok {
			continue
		}
		bar := barView{Name: x.Contender, Text: c.Unit.Format(value), Ours: x.Kind == KindOurs, Y: len(p.Bars) * barHeight, Width: scale(value)}
		for _, f := range x.Rounds {
			if value, ok := f[c.Metric]; ok {
				bar.Dots = append(bar.Dots, scale(value))
			}
		}
		p.Bars = append(p.Bars, bar)
	}
	p.Height = len(p.Bars) * barHeight
	return p
}
