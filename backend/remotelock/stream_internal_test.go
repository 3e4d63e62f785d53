package remotelock

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
)

// FuzzStream reads server-sent events that our server never sends: a delivered event is of a
// known kind, and the end is an error, but not that of a context.
func FuzzStream(f *testing.F) {
	for _, s := range []string{
		"", ":\n\n", "event: acquired\ndata: {\"name\":\"n\",\"token\":7}\n\n", "event: error\ndata: {\"title\":\"x\"}\n\n",
		"event: error\ndata: [\n\n", "event: nothing\ndata: {}\n\n", "data: x\n\nevent:released\ndata:{\"token\":-1}\n\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		err := read(bytes.NewReader(text), func() {}, func(e backend.Event) {
			if e.Kind == "" {
				t.Errorf("%q gives an event of no kind", text)
			}
		})
		if err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("the stream of %q ended with %v", text, err)
		}
	})
}
