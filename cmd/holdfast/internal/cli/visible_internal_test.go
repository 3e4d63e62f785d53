package cli

import (
	"bytes"
	"testing"
)

// TestVisibleWriter: a character in two writes is one, and invalid bytes are shown.
func TestVisibleWriter(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		writes []string
		want   string
	}{
		{[]string{"a\tb\n"}, "a\tb\n"},
		{[]string{"\x1b[2J\r\x7f\u009b"}, `\u001b[2J\u000d\u007f\u009b`},
		{[]string{"\u202e\u2069\u200d\u2028\U000E0001"}, `\u202e\u2069\u200d\u2028\udb40\udc01`},
		{[]string{"\xff\xfe\xc3("}, `\xff\xfe\xc3(`},
		{[]string{"\uFFFD"}, "\uFFFD"},
		{[]string{"\xe5\xbe", "\x85"}, "待"},
		{[]string{"\xf0", "\x9f", "\x94\x92."}, "🔒."},
		{[]string{"\xe2\x80", "\xae"}, `\u202e`},
		{[]string{"\xe5\xbe", "x"}, `\xe5\xbex`},
	} {
		var got bytes.Buffer
		w := visible(&got)
		for _, text := range tc.writes {
			if n, err := w.Write([]byte(text)); n != len(text) || err != nil {
				t.Errorf("%q: %d, %v", text, n, err)
			}
		}
		if got.String() != tc.want {
			t.Errorf("%q is written as %q, want %q", tc.writes, got.String(), tc.want)
		}
	}
	if got := oneLine("a\n\tb"); got != `a\n\tb` {
		t.Errorf("%q", got)
	}
	if w := visible(&bytes.Buffer{}); visible(w) != w {
		t.Error("what is visible is made visible again")
	}
}
