package sqllease_test

import (
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// FuzzNotifications checks that no payload breaks the decoder.
func FuzzNotifications(f *testing.F) {
	for _, s := range []string{"", "h", "g\t\t\t\t\t\t", `g{"Lease":"L","Session":"S","Name":"n","Token":2}`, "lL\tn\nsS\n", "{}", "\n\n", `g{"Token":18446744073709551616}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		n := sqllease.Decode(payload)
		if lines := strings.Count(payload, "\n") + 1; n > lines {
			t.Errorf("%d lines say %d things", lines, n)
		}
	})
}
