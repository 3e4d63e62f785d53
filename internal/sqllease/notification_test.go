package sqllease_test

import (
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// FuzzNotifications checks that no payload breaks the decoder.
func FuzzNotifications(f *testing.F) {
	for _, s := range []string{"", "h", "g\t\t\t\t\t\t", "gL\tS\t2\t1\t3\ttrue\tn\n", "lL\tn\nsS\n", "{}", "\n\n", "g1\t2\t9223372036854775808\t1\t1\ttrue\tn"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		n := sqllease.Decode(payload)
		if lines := strings.Count(payload, "\n") + 1; n > lines {
			t.Errorf("%d lines say %d things", lines, n)
		}
	})
}
