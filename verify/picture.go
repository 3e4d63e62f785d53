package verify

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/holdfast-io/holdfast/verify/history"
)

//go:embed picture.html
var pictureHTML string

// Bounds of the picture of a lock, so that a browser can show it.
const (
	maxPictures = 12   // locks
	maxBars     = 4000 // of a lock
	width       = 1600 // of the picture, in units
	rowHeight   = 16
)

// picture is one lock over time: a row for each worker.
type picture struct {
	Name   string
	Bad    bool
	Height int
	Rows   []row
	Bars   []bar
	Marks  []bar
	Faults []bar
	Ticks  []tick
	Left   int // bars that were left out

	Width, ViewHeight int
}

type row struct {
	Y    int
	Text string
}

// bar is a rectangle with a tip. Kind is its class in the style sheet.
type bar struct {
	X, W float64
	Y, H int
	Kind string
	Tip  string
}

type tick struct {
	X    float64
	Text string
}

// WriteHTML writes the report and a picture of the history as one self-contained page: no
// script, no network. h is the history that was judged.
func (r *Report) WriteHTML(w io.Writer, h *history.History) error {
	t, err := template.New("picture").Parse(pictureHTML)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		return err
	}
	page := struct {
		Report   *Report
		Text     string
		Pictures []picture
	}{r, text.String(), r.pictures(newGame(h))}
	if err := t.Execute(w, page); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// pictures draws the locks with findings first, and then as many of the others as there is room
// for.
func (r *Report) pictures(g *game) []picture {
	bad := make(map[string][]Finding)
	for _, c := range r.Checks {
		for _, f := range c.Details {
			if f.Lock != "" {
				bad[f.Lock] = append(bad[f.Lock], f)
			}
		}
	}
	names := slices.Clone(g.names)
	slices.SortStableFunc(names, func(a, b string) int {
		return boolInt(len(bad[b]) > 0) - boolInt(len(bad[a]) > 0)
	})
	var out []picture
	for _, name := range names[:min(len(names), maxPictures)] {
		out = append(out, r.draw(g, name, bad[name]))
	}
	return out
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// canvas translates times of one lock to positions.
type canvas struct {
	*picture
	g    *game
	from int64
	per  float64 // units per nanosecond
	rows map[string]int
}

func (c *canvas) x(t int64) float64 {
	return max(0, min(width, float64(t-c.from)*c.per))
}

func (c *canvas) add(list *[]bar, worker, kind string, from, until int64, tip string) {
	y, ok := c.rows[worker]
	if !ok {
		return
	}
	if len(*list) >= maxBars {
		c.Left++
		return
	}
	until = min(until, c.g.h.End)
	x := c.x(from)
	*list = append(*list, bar{X: x, W: max(0.8, c.x(until)-x), Y: y, H: rowHeight - 4, Kind: kind, Tip: tip})
}

func (r *Report) draw(g *game, name string, bad []Finding) picture {
	p := picture{Name: r.short(name), Bad: len(bad) > 0}
	from, until := history.Infinity, int64(0)
	var workers []string
	for _, a := range g.locks[name] {
		from, until = min(from, a.Call()), max(until, a.Call(), min(a.over(), g.h.End))
		if !slices.Contains(workers, a.Worker) {
			workers = append(workers, a.Worker)
		}
	}
	slices.Sort(workers)
	c := canvas{picture: &p, g: g, from: from, per: width / float64(max(1, until-from)), rows: make(map[string]int)}
	for i, w := range workers {
		c.rows[w] = i * rowHeight
		p.Rows = append(p.Rows, row{Y: i*rowHeight + rowHeight - 5, Text: w})
	}
	p.Height = len(workers) * rowHeight
	p.Width, p.ViewHeight = width+100, p.Height+24
	c.faults()
	for _, a := range g.locks[name] {
		c.acquisition(a)
	}
	for _, f := range bad {
		p.Marks = append(p.Marks, bar{X: c.x(f.At), W: max(2, c.x(max(f.Until, f.At))-c.x(f.At)), Y: 0, H: p.Height, Kind: "bad", Tip: r.short(f.Text)})
	}
	for i := range 11 {
		t := from + (until-from)*int64(i)/10
		p.Ticks = append(p.Ticks, tick{X: c.x(t), Text: g.at(t)})
	}
	return p
}

// acquisition draws the wait, the beliefs, and the calls.
func (c *canvas) acquisition(a *acquisition) {
	what := fmt.Sprintf("%s, %s, %s, %s", a.Acq, a.Verb, mode(a), a.Outcome)
	if a.Token > 0 {
		what += fmt.Sprintf(", token %d", a.Token)
	}
	c.add(&c.Bars, a.Worker, "wait "+string(a.Outcome), a.Call(), min(a.Return, a.proc.gone), what+": asked "+c.g.span(a.Call(), a.Return))
	kind := "held"
	if a.Shared {
		kind = "shared"
	}
	for _, b := range a.beliefs() {
		c.add(&c.Bars, a.Worker, kind, b.from, b.until, what+": held "+c.g.span(b.from, b.until))
	}
	if a.lost != nil {
		c.add(&c.Marks, a.Worker, "lost", a.lost.At, a.lost.At, what+": lost, "+a.lost.Text+", "+c.g.at(a.lost.At))
	}
	for _, o := range a.ops {
		c.add(&c.Marks, a.Worker, "call", o.Call(), o.Call(), fmt.Sprintf("%s: %s, %s, %s", a.Acq, o.Verb, o.Outcome, c.g.span(o.Call(), o.Return)))
	}
}

// faults draws the faults of the workers in the picture.
func (c *canvas) faults() {
	begun := make(map[string]history.Event)
	for _, e := range c.g.h.Events {
		switch e.Kind { //nolint:exhaustive // the others are not drawn
		case history.KindFault, history.KindFreeze:
			begun[e.Worker] = e
		case history.KindHeal, history.KindThaw:
			b := begun[e.Worker]
			text := b.Text
			if e.Kind == history.KindThaw {
				text = "stopped"
			}
			if b.At > 0 && e.At >= c.from {
				c.add(&c.Faults, e.Worker, string(b.Kind), b.At, e.At, fmt.Sprintf("worker %s: %s, %s", e.Worker, text, c.g.span(b.At, e.At)))
			}
		case history.KindKill:
			if e.At >= c.from {
				c.add(&c.Faults, e.Worker, "kill", e.At, e.At, fmt.Sprintf("worker %s: killed %s", e.Worker, c.g.at(e.At)))
			}
		}
	}
}
