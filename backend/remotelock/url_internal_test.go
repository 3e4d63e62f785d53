package remotelock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/leasetest"
)

func FuzzURL(f *testing.F) {
	leasetest.FuzzURL(f, func(raw string) error {
		t, err := parse(raw)
		if err != nil {
			return err
		}
		for _, u := range t.bases {
			if u.Host == "" || t.socket == "" && u.Port() == "" || strings.Contains(u.String(), leasetest.Canary) || strings.Contains(raw, leasetest.Canary) && t.token.value != leasetest.Canary {
				err = fmt.Errorf("parsed as %s", u)
			}
		}
		return err
	},
		"holdfast://h", "holdfasts://:token@h:7420/path/", "holdfast://[::1]:1", "holdfast://u@h", "holdfast://h:99999", "http://h", "holdfast://h?x=1", "holdfast://%zz", "holdfast+unix:///run/h.sock", "holdfast://h?token_file=x", "holdfasts://:token@a,b:1,[::1]/path")
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
