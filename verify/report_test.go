package verify_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/verify"
	"github.com/holdfast-io/holdfast/verify/history"
)

// evil is a possible name of a lock, and must not become markup.
const evil = `<script>alert("1")</script>&`

func reportOf(t *testing.T) (*verify.Report, *history.History) {
	t.Helper()
	s := newScript(t)
	s.events[0].Backend = "paper"
	s.events[0].NotTested = []string{"the moon"}
	s.add(5, history.Event{Kind: history.KindFault, Worker: "1.1", Text: "cut"})
	s.got(10, 20, "1.1", "x", 1, onLock(evil))
	s.got(30, 40, "2.1", "y", 2, onLock(evil))
	s.add(45, history.Event{Kind: history.KindHeal, Worker: "1.1", Text: "cut"})
	s.proc(history.KindKill, 50, "1.1")
	s.lost(60, 1030, "2.1", "y")
	h, err := history.New(append(s.events, history.Event{Kind: history.KindFooter, At: 70 * ms}))
	if err != nil {
		t.Fatal(err)
	}
	return verify.Judge(t.Context(), h, verify.Options{}), h
}

func TestWriteText(t *testing.T) {
	t.Parallel()
	r, _ := reportOf(t)
	var out strings.Builder
	if err := r.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"paper", "granted twice", "the moon", "\nVIOLATION\n", "less than 20 say nothing"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, &out)
		}
	}
}

func TestWriteJUnit(t *testing.T) {
	t.Parallel()
	r, _ := reportOf(t)
	var out bytes.Buffer
	if err := r.WriteJUnit(&out); err != nil {
		t.Fatal(err)
	}
	var suite struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Errors   int `xml:"errors,attr"`
		Cases    []struct {
			Name    string  `xml:"name,attr"`
			Failure *string `xml:"failure"`
		} `xml:"testcase"`
	}
	if err := xml.Unmarshal(out.Bytes(), &suite); err != nil {
		t.Fatal(err)
	}
	if suite.Tests != len(r.Checks) || suite.Failures != 2 || suite.Errors != 1 || len(suite.Cases) != suite.Tests {
		t.Errorf("got %+v", suite)
	}
	if f := suite.Cases[0].Failure; f == nil || !strings.Contains(*f, "granted twice") || !strings.Contains(*f, evil[:8]) {
		t.Errorf("the failure says %v", f)
	}
}

// The page shows faults and findings, has no script, and loads nothing.
func TestWriteHTML(t *testing.T) {
	t.Parallel()
	r, h := reportOf(t)
	var out bytes.Buffer
	if err := r.WriteHTML(&out, h); err != nil {
		t.Fatal(err)
	}
	page := out.String()
	for _, want := range []string{`class="violation"`, `class="bad"`, `class="held"`, `class="fault"`, `class="kill"`, `class="lost"`, "worker 1.1: cut", "granted twice", "default-src &#39;none&#39;"} {
		if !strings.Contains(strings.ReplaceAll(page, "'", "&#39;"), want) {
			t.Errorf("%s is missing", want)
		}
	}
	for _, bad := range []string{"<script", "http://", "https://", "src=", "url("} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, []string{"meta", "!doctype"}, xml.HTMLEntity
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the page is no markup: %v", err)
		}
	}
}
