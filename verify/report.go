package verify

import (
	"fmt"

	"github.com/holdfast-io/holdfast/verify/history"
)

// Verdict is the outcome of a check, or of all checks.
type Verdict string

// The verdicts.
const (
	Pass         Verdict = "pass"
	Violation    Verdict = "violation"
	Inconclusive Verdict = "inconclusive"
)

// and combines two verdicts: one violation is a violation, whatever else is open.
func (v Verdict) and(w Verdict) Verdict {
	for _, worst := range []Verdict{Violation, Inconclusive} {
		if v == worst || w == worst {
			return worst
		}
	}
	return Pass
}

// maxFindings is how many findings of a check are reported; the others are counted.
const maxFindings = 20

// Finding is one place in the history that breaks a rule, or that stays open.
type Finding struct {
	Lock string `json:"lock,omitempty"`
	// At and Until are times of the history, in nanoseconds.
	At    int64    `json:"at"`
	Until int64    `json:"until,omitempty"`
	Acqs  []string `json:"acquisitions,omitempty"`
	Text  string   `json:"text"`
}

// Check is the result of one checker.
type Check struct {
	ID      string    `json:"id"`
	Title   string    `json:"title"`
	Verdict Verdict   `json:"verdict"`
	Summary string    `json:"summary"`
	Found   int       `json:"found"`
	Details []Finding `json:"findings,omitempty"` // the first findings

	notify func(check string, f Finding) // optional
}

// violated adds a finding that breaks the rule.
func (c *Check) violated(f Finding) {
	c.Verdict = Violation
	c.add(f)
}

func (c *Check) add(f Finding) {
	if c.Found++; len(c.Details) < maxFindings {
		c.Details = append(c.Details, f)
	}
	if c.notify != nil {
		c.notify(c.ID, f)
	}
}

// open adds a finding that leaves the check open.
func (c *Check) open(f Finding) {
	c.Verdict = c.Verdict.and(Inconclusive)
	c.add(f)
}

func newCheck(id, title string) Check { return Check{ID: id, Title: title, Verdict: Pass} }

// span formats times of the history as seconds since its start.
func (g *game) span(from, to int64) string {
	return fmt.Sprintf("%s to %s", g.at(from), g.at(to))
}

func (g *game) at(t int64) string {
	if t == history.Infinity {
		return "for ever"
	}
	return fmt.Sprintf("%.4fs", float64(t-g.h.Start)/1e9)
}
