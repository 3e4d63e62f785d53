package consullock_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/consullock"
)

// Every URL either opens or is invalid, and the error never contains what is before the @.
func FuzzURL(f *testing.F) {
	f.Add("h:8500/prefix?dc=a&min_ttl=1s")
	f.Add("[::1]:8501/a/b?ns=x")
	f.Add("h/../x?token=1")
	f.Add(":99999/%zz#f")
	f.Fuzz(func(t *testing.T, rest string) {
		const secret = "canary-4b1f"
		b, err := consullock.Open(t.Context(), "consul://:"+secret+"@"+rest, consullock.Config{})
		if err == nil {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			return
		}
		if !errors.Is(err, backend.ErrInvalid) || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", rest, err)
		}
	})
}
