package verify_test

import (
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/verify"
	"github.com/holdfast-io/holdfast/verify/history"
)

func reportOf(t *testing.T) *verify.Report {
	t.Helper()
	s := newScript(t)
	s.events[0].Backend = "paper"
	s.events[0].NotTested = []string{"the moon"}
	s.add(5, history.Event{Kind: history.KindFault, Worker: "1.1", Text: "cut"})
	s.got(10, 20, "1.1", "x", 1, onLock("a"))
	s.got(30, 40, "2.1", "y", 2, onLock("a"))
	s.add(45, history.Event{Kind: history.KindHeal, Worker: "1.1", Text: "cut"})
	s.proc(history.KindKill, 50, "1.1")
	s.lost(60, 1030, "2.1", "y")
	h, err := history.New(append(s.events, history.Event{Kind: history.KindFooter, At: 70 * ms}))
	if err != nil {
		t.Fatal(err)
	}
	return verify.Judge(t.Context(), h, verify.Options{})
}

func TestWriteText(t *testing.T) {
	t.Parallel()
	r := reportOf(t)
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
