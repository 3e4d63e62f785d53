package remotelock

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
)

// Any URL is either accepted, or an *InvalidError that does not contain the token.
func FuzzURL(f *testing.F) {
	for _, raw := range []string{
		"holdfast://h", "holdfasts://:token@h:7420/path/", "holdfast://[::1]:1", "holdfast://u@h", "holdfast://h:99999", "http://h", "holdfast://h?x=1", "holdfast://%zz",
	} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		const canary = "canary-7f3a"
		for _, raw := range []string{raw, strings.Replace(raw, "://", "://u:"+canary+"@", 1)} {
			u, token, err := parse(raw)
			if err != nil && (!errors.Is(err, backend.ErrInvalid) || strings.Contains(err.Error(), canary)) {
				t.Errorf("%q: %v", raw, err)
			}
			if err == nil && (u.Host == "" || u.Port() == "" || strings.Contains(u.String(), canary) || strings.Contains(raw, canary) && token != canary) {
				t.Errorf("%q: %s", raw, u)
			}
		}
	})
}

// FuzzStream reads server-sent events that our server never sends: a delivered event is of a
// known kind, and the end is an error of the right kind.
func FuzzStream(f *testing.F) {
	for _, s := range []string{
		"", ":\n\n", "event: acquired\ndata: {\"name\":\"n\",\"token\":7}\n\n", "event: error\ndata: {\"title\":\"x\"}\n\n",
		"event: error\ndata: [\n\n", "event: nothing\ndata: {}\n\n", "data: x\n\nevent:released\ndata:{\"token\":-1}\n\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		b := &Backend{}
		err := b.read(bytes.NewReader(text), func() {}, func(e backend.Event) {
			if e.Kind == "" {
				t.Errorf("%q gives an event of no kind", text)
			}
		})
		if err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("the stream of %q ended with %v", text, err)
		}
	})
}
