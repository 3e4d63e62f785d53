package pglock

import (
	"testing"
	"time"
)

// The server's kernel probes a holder after a whole number of seconds, and not before the
// holder's time has passed.
func TestWholeSeconds(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		time.Millisecond: "1", time.Second: "1", time.Second + 1: "2", 2500 * time.Millisecond: "3",
		9 * time.Hour: "32400", 24 * time.Hour: "32767",
	} {
		if got := wholeSeconds(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}
