package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// Options configure a run.
type Options struct {
	// Rounds of each scenario. Default: 5. Optional.
	Rounds int
	// Budget is how long one contender runs in one round. Default: 1 s. Optional.
	Budget time.Duration
	// Only are patterns, as of path.Match, of the IDs of scenarios. Default: all.
	// Optional.
	Only []string
	// Contenders are patterns of their names. Default: all. Optional.
	Contenders []string
	// Progress gets a line for each scenario that begins. Optional.
	Progress io.Writer
}

func (o Options) withDefaults() (Options, error) {
	for _, pattern := range slices.Concat(o.Only, o.Contenders) {
		if _, err := path.Match(pattern, ""); err != nil {
			return o, &backend.InvalidError{Field: "pattern", Value: fmt.Sprintf("%q", pattern), Bound: "a pattern as of path.Match"}
		}
	}
	switch {
	case o.Rounds < 0 || o.Rounds > 1000:
		return o, &backend.InvalidError{Field: "rounds", Value: strconv.Itoa(o.Rounds), Bound: "1 to 1000"}
	case o.Budget < 0 || o.Budget > time.Hour:
		return o, &backend.InvalidError{Field: "budget", Value: o.Budget.String(), Bound: "above 0, at most 1h"}
	case o.Rounds == 0:
		o.Rounds = 5
	}
	if o.Budget == 0 {
		o.Budget = time.Second
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return o, nil
}

// Run measures all scenarios on the engines and returns the report. A contender that fails drops
// out of its scenario, with the reason in its result; the others continue.
//
// Errors: *backend.InvalidError for options out of bounds; ctx's cause, with the results so far.
func Run(ctx context.Context, engines []*Engine, o Options) (*Report, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	report := newReport(o)
	plan := o.plan(engines)
	for _, e := range engines {
		report.Engines = append(report.Engines, EngineInfo{Name: e.Name, Version: e.Version})
	}
	for i, p := range plan {
		fmt.Fprintf(o.Progress, "%3d%% %s %s\n", 100*i/len(plan), p.engine.Name, p.scenario.ID)
		report.Results = append(report.Results, p.run(ctx, o)...)
		if ctx.Err() != nil {
			return report, context.Cause(ctx)
		}
	}
	return report, nil
}

// part is one scenario on one engine.
type part struct {
	engine     *Engine
	scenario   Scenario
	contenders []Contender
}

func (o Options) plan(engines []*Engine) []part {
	var plan []part
	for _, e := range engines {
		for _, s := range Scenarios() {
			if !matches(o.Only, s.ID) || s.Counts && e.Meter == nil {
				continue
			}
			p := part{engine: e, scenario: s}
			for _, c := range e.Contenders {
				if matches(o.Contenders, c.Name) && c.Can&s.Needs == s.Needs {
					p.contenders = append(p.contenders, c)
				}
			}
			if len(p.contenders) > 0 {
				plan = append(plan, p)
			}
		}
	}
	return plan
}

func matches(patterns []string, name string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(p, name) // the patterns were checked
		return ok
	})
}

// run runs the contenders in turn; each round begins with another one.
func (p *part) run(ctx context.Context, o Options) []Result {
	results := make([]Result, len(p.contenders))
	for i, c := range p.contenders {
		results[i] = Result{Engine: p.engine.Name, Scenario: p.scenario.ID, Title: p.scenario.Title, Contender: c.Name, Ours: c.Ours}
	}
	rounds := o.Rounds
	if p.scenario.Metered && p.engine.Meter != nil {
		rounds++
	}
	for round := 1; round <= rounds; round++ {
		for turn := range results {
			i := (turn + round - 1) % len(results)
			r := &results[i]
			if r.Failed != "" || ctx.Err() != nil {
				continue
			}
			figures, err := p.trial(ctx, o, i, round > o.Rounds)
			if err != nil {
				r.Failed = err.Error()
				continue
			}
			r.Rounds = append(r.Rounds, figures)
		}
	}
	for i := range results {
		results[i].Figures = merge(results[i].Rounds)
	}
	return results
}

func (p *part) trial(ctx context.Context, o Options, i int, metered bool) (Figures, error) {
	t := &Trial{
		Engine: p.engine, Contender: &p.contenders[i], Budget: o.Budget, TTL: lockTTL,
		Prefix: "holdfast-bench/" + string(backend.NewLeaseID()) + "/", Metered: metered,
	}
	figures, err := p.scenario.Run(ctx, t)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	return figures, err
}

const lockTTL = 30 * time.Second
