package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Names, owners, notes, reasons and errors come from a server, and from other clients through
// it. A terminal obeys escape sequences in them: they set its title, erase what was printed or
// answer for the user. Bidirectional marks display a name that is not the real one. So all
// output of the command passes through a visibleWriter, and text that has to stay one line or
// one cell passes through oneLine too. Sequences that control the terminal on purpose are
// written to the raw writer: see app.control.

// visibleWriter writes text so that every character in it can be seen. Control characters
// except newline and tab, C1 controls, format characters such as bidirectional marks, and
// unassigned ones become \uXXXX, as in JSON, so that JSON keeps its meaning. Bytes that are not
// UTF-8 become \xXX. It is safe for concurrent use.
type visibleWriter struct {
	raw io.Writer

	mu   sync.Mutex
	tail []byte // the beginning of an incomplete character
}

// visible returns a visibleWriter on w, or w if it is one.
func visible(w io.Writer) io.Writer {
	if v, ok := w.(*visibleWriter); ok {
		return v
	}
	return &visibleWriter{raw: w}
}

// raw returns the writer below a visibleWriter: a terminal that can be asked for its size, and
// passed to a child.
func raw(w io.Writer) io.Writer {
	if v, ok := w.(*visibleWriter); ok {
		return v.raw
	}
	return w
}

// Write writes p with one call. It writes all of p, or returns the error of the writer below.
func (w *visibleWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := append(w.tail, p...) //nolint:gocritic // the tail is set again below
	whole := len(text)
	for cut := 1; cut < utf8.UTFMax && cut <= len(text); cut++ {
		if rest := text[len(text)-cut:]; utf8.RuneStart(rest[0]) {
			if !utf8.FullRune(rest) {
				whole = len(text) - cut
			}
			break
		}
	}
	out := appendVisible(make([]byte, 0, len(text)), string(text[:whole]), "\n\t")
	w.tail = append([]byte(nil), text[whole:]...)
	if _, err := w.raw.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// oneLine makes the text fit for a part of one line: newlines and tabs are made visible too, so
// that nothing in it looks like a separate line or column.
func oneLine(text string) string {
	return string(appendVisible(make([]byte, 0, len(text)), text, ""))
}

// appendVisible appends the text. The characters of plain are not changed.
func appendVisible(to []byte, text, plain string) []byte {
	for i, r := range text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], "\uFFFD"):
			to = fmt.Appendf(to, `\x%02x`, text[i])
		case unicode.IsGraphic(r), strings.ContainsRune(plain, r):
			to = utf8.AppendRune(to, r)
		case r == '\n':
			to = append(to, `\n`...)
		case r == '\t':
			to = append(to, `\t`...)
		case r > 0xFFFF:
			first, second := utf16.EncodeRune(r)
			to = fmt.Appendf(to, `\u%04x\u%04x`, first, second)
		default:
			to = fmt.Appendf(to, `\u%04x`, r)
		}
	}
	return to
}

// line prints one line to w.
func (*app) line(w io.Writer, format string, args ...any) error {
	_, err := io.WriteString(w, oneLine(fmt.Sprintf(format, args...))+"\n")
	return err
}
