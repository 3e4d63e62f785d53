package runner

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/verify"
)

// soaked is the result of a soak: one line of SOAK_REPORT.
type soaked struct {
	Backend string    `json:"backend"`
	Profile string    `json:"profile"`
	Seed    uint64    `json:"seed"` // of the first round
	Begun   time.Time `json:"begun"`
	Seconds float64   `json:"seconds"`
	Rounds  int       `json:"rounds"`

	Calls      int `json:"calls"`
	Grants     int `json:"grants"`
	Kills      int `json:"kills"`
	Freezes    int `json:"freezes"`
	Network    int `json:"network_faults"`
	Servers    int `json:"server_faults"` // of the servers that the soak started for that
	Losses     int `json:"losses"`
	Violations int `json:"violations"`
	// Inconclusive is how many checks were inconclusive: they are neither pass nor failure.
	Inconclusive int `json:"inconclusive"`
	// Unanswered is how many calls had no known outcome, as faults are expected to cause.
	Unanswered int                      `json:"calls_of_unknown_outcome"`
	Registers  map[string]verify.Writes `json:"registers"`

	Sizes  []sizes  `json:"sizes"` // after each round
	Grown  []string `json:"grown"` // those of the sizes that must not grow and did
	Failed bool     `json:"failed"`
}

// add counts a round.
func (s *soaked) add(r runResult) {
	s.Rounds++
	n := r.Counts
	for _, e := range r.faults {
		if e.Worker == "" {
			s.Servers++
			n.Network--
		}
	}
	s.Calls, s.Grants, s.Unanswered = s.Calls+n.Calls, s.Grants+n.Grants, s.Unanswered+n.Unknown
	s.Kills, s.Freezes, s.Network, s.Losses = s.Kills+n.Kills, s.Freezes+n.Freezes, s.Network+n.Network, s.Losses+n.Losses
	for _, c := range r.Checks {
		switch c.Verdict {
		case verify.Violation:
			s.Violations += c.Found
		case verify.Inconclusive:
			s.Inconclusive++
		case verify.Pass:
		}
	}
	if s.Registers == nil {
		s.Registers = make(map[string]verify.Writes)
	}
	for name, w := range r.Registers {
		sum := s.Registers[name]
		sum.Sent, sum.Stale, sum.Stopped, sum.LostUpdates = sum.Sent+w.Sent, sum.Stale+w.Stale, sum.Stopped+w.Stopped, sum.LostUpdates+w.LostUpdates
		s.Registers[name] = sum
	}
}

// report appends the result to the file.
func (s *soaked) report(t *testing.T) {
	t.Helper()
	s.Seconds = time.Since(s.Begun).Round(time.Second).Seconds()
	name := os.Getenv("SOAK_REPORT")
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := json.NewEncoder(f).Encode(s); err != nil {
		t.Fatal(err)
	}
}
