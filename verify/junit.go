package verify

import (
	"encoding/xml"
	"fmt"
	"io"
	"strconv"
	"strings"
)

type junitSuite struct {
	XMLName  xml.Name        `xml:"testsuite"`
	Name     string          `xml:"name,attr"`
	Tests    int             `xml:"tests,attr"`
	Failures int             `xml:"failures,attr"`
	Errors   int             `xml:"errors,attr"`
	Time     string          `xml:"time,attr"`
	Stamp    string          `xml:"timestamp,attr,omitempty"`
	Props    []junitProperty `xml:"properties>property"`
	Cases    []junitCase     `xml:"testcase"`
	Out      string          `xml:"system-out,omitempty"`
}

type junitProperty struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

type junitCase struct {
	Class   string      `xml:"classname,attr"`
	Name    string      `xml:"name,attr"`
	Time    string      `xml:"time,attr"`
	Failure *junitFault `xml:"failure,omitempty"`
	Error   *junitFault `xml:"error,omitempty"`
	Out     string      `xml:"system-out"`
}

type junitFault struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// WriteJUnit writes the report in the format that build servers read: a violation is a failure,
// and an inconclusive check is an error.
func (r *Report) WriteJUnit(w io.Writer) error {
	h := r.Header
	s := junitSuite{
		Name: "holdfast verify " + h.Backend, Tests: len(r.Checks), Time: fmt.Sprintf("%.3f", r.Seconds), Stamp: h.Started,
		Props: []junitProperty{{"seed", strconv.FormatUint(h.Seed, 10)}, {"profile", h.Profile}, {"replay", h.Replay}},
	}
	for _, text := range h.NotTested {
		s.Props = append(s.Props, junitProperty{"not tested", text})
	}
	for _, text := range h.Warnings {
		s.Props = append(s.Props, junitProperty{"warning", text})
	}
	for _, c := range r.Checks {
		tc := junitCase{Class: "verify." + h.Backend, Name: c.ID, Time: "0", Out: c.Title + "\n" + c.Summary}
		fault := &junitFault{Message: c.Summary, Text: r.details(c)}
		switch c.Verdict {
		case Violation:
			tc.Failure = fault
			s.Failures++
		case Inconclusive:
			tc.Error = fault
			s.Errors++
		case Pass:
		}
		s.Cases = append(s.Cases, tc)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		return err
	}
	s.Out = text.String()
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(s); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

func (r *Report) details(c Check) string {
	var b strings.Builder
	for _, f := range c.Details {
		fmt.Fprintf(&b, "%s\n", r.short(f.Text))
	}
	if more := c.Found - len(c.Details); more > 0 {
		fmt.Fprintf(&b, "and %d more\n", more)
	}
	return b.String()
}
