package history_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/verify/history"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const header = `{"e":"header","t":1,"version":1,"session_ttl":1000}` + "\n"

func TestReadPairsCallsAndReturns(t *testing.T) {
	t.Parallel()
	h, err := history.Read(strings.NewReader(header +
		`{"e":"call","t":10,"w":"1.1","op":1,"verb":"acquire","lock":"a","acq":"x"}` + "\n" +
		`{"e":"call","t":5,"w":"2.1","op":1,"verb":"try","lock":"a","acq":"y"}` + "\n" +
		`{"e":"return","t":20,"w":"1.1","op":1,"outcome":"ok","token":7,"deadline":900}` + "\n" +
		`{"e":"freeze","t":15,"w":"1.1"}` + "\n" +
		`{"e":"footer","t":99}` + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	if !h.Complete || h.Start != 1 || h.End != 99 || len(h.Ops) != 2 || len(h.Events) != 1 {
		t.Fatalf("got %+v", h)
	}
	if o := h.Ops[0]; o.Acq != "y" || o.Return != history.Infinity || o.Outcome != history.Unknown || o.Granted() {
		t.Errorf("a call without return is %+v", o)
	}
	if o := h.Ops[1]; o.Acq != "x" || o.Call() != 10 || o.Return != 20 || o.Token != 7 || o.Deadline != 900 || !o.Granted() {
		t.Errorf("a call with return is %+v", o)
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	const call = `{"e":"call","t":10,"w":"1.1","op":1,"verb":"acquire","lock":"a","acq":"x"}` + "\n"
	const ret = `{"e":"return","t":20,"w":"1.1","op":1,"outcome":"ok"}` + "\n"
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", "line 1"},
		{"no header", call, "line 1"},
		{"no JSON", header + "x\n", "line 2"},
		{"another version", `{"e":"header","t":1,"version":2,"session_ttl":1}`, "version"},
		{"no TTL", `{"e":"header","t":1,"version":1}`, "session_ttl"},
		{"an unknown field", header + `{"e":"note","t":1,"colour":"red"}`, "colour"},
		{"an unknown kind", header + `{"e":"joke","t":1}`, "joke"},
		{"two values on a line", header + `{"e":"note","t":1}{"e":"note","t":1}`, "more than one"},
		{"a second header", header + header, "line 2"},
		{"a return without its call", header + ret, "without its call"},
		{"a return twice", header + call + ret + ret, "line 4"},
		{"a call twice", header + call + call, "line 3"},
		{"an acquisition twice", header + call + strings.Replace(call, `"op":1`, `"op":2`, 1), "acquisition"},
		{"a return before its call", header + call + strings.Replace(ret, "20", "9", 1), "before its call"},
		{"an unknown verb", header + strings.Replace(call, "acquire", "steal", 1), "steal"},
		{"an unknown outcome", header + call + strings.Replace(ret, "ok", "maybe", 1), "maybe"},
		{"a call without a lock", header + strings.Replace(call, `"lock":"a",`, "", 1), "lock"},
		{"a write to nowhere", header + `{"e":"write","t":1,"lock":"a","value":"v","outcome":"ok"}`, "register"},
		{"a line without end", header + `{"e":"note","text":"` + strings.Repeat("x", 2<<20), "longer"},
	} {
		_, err := history.Read(strings.NewReader(c.text))
		var format *history.FormatError
		if !errors.As(err, &format) || !errors.Is(err, history.ErrFormat) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want a *FormatError with %q", c.name, err, c.want)
		}
	}
}

func TestWhatIsCutShortIsNotComplete(t *testing.T) {
	t.Parallel()
	h, err := history.Read(strings.NewReader(header))
	if err != nil || h.Complete {
		t.Errorf("got %+v, %v", h, err)
	}
}

func TestWriterSticksToItsError(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken pipe")
	w := history.NewWriter(failing{broken})
	for range 2 {
		if err := w.Write(history.Event{Kind: history.KindNote}); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// A history that can be read can be written and read again, and is then the same.
func FuzzRead(f *testing.F) {
	f.Add([]byte(header))
	f.Add([]byte(header + `{"e":"call","t":10,"w":"1.1","op":1,"verb":"try","lock":"a","acq":"x","shared":true,"limit":3}` + "\n"))
	f.Add([]byte(header + `{"e":"write","t":3,"register":"bare","lock":"a","value":"v","outcome":"refused"}` + "\n" + `{"e":"footer","t":4}`))
	f.Add([]byte(`{"e":"header","t":1,"version":1,"session_ttl":-1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		first, err := history.Read(bytes.NewReader(text))
		if err != nil {
			if !errors.Is(err, history.ErrFormat) {
				t.Fatalf("got %v, want a *FormatError", err)
			}
			return
		}
		var again bytes.Buffer
		w := history.NewWriter(&again)
		for line := range bytes.Lines(text) {
			e, err := history.ParseLine(bytes.TrimRight(line, "\r\n"))
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Write(e); err != nil {
				t.Fatal(err)
			}
		}
		second, err := history.Read(&again)
		if err != nil || !reflect.DeepEqual(first, second) {
			t.Fatalf("written and read again: %v\n%+v\n%+v", err, first, second)
		}
	})
}
