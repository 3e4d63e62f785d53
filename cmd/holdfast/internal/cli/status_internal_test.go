package cli

import (
	"errors"
	"testing"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
)

// A store that refuses is 74, whatever it refuses. A lock whose renewals were refused until it ended is lost: the work was
// cut short, and a wrapper must not take it for work that never began.
func TestStatusOfARefusal(t *testing.T) {
	t.Parallel()
	refused := &backend.RefusedError{Backend: "redis", Err: errors.New("WRONGPASS"), Remedy: "check the password"}
	for want, err := range map[int]error{
		exitAway:  &backend.UnavailableError{Backend: "redis", Op: "acquire", Err: refused},
		exitLost:  &holdfast.LostError{Name: "n", Err: refused},
		exitUsage: &backend.InvalidError{Field: "ttl", Value: "0s", Bound: "at least 1s"},
	} {
		if got := statusOf(err); got != want {
			t.Errorf("%v: status %d, want %d", err, got, want)
		}
	}
}
