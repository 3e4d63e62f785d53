//go:build unix

package testserver

import (
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/launch"
)

// HoldfastServer is "holdfast serve" on a file, which is in its folder "data".
type HoldfastServer struct{ server }

// StartHoldfast starts a server, built from these sources.
func StartHoldfast(t testing.TB) *HoldfastServer {
	t.Helper()
	o := options(t)
	o.Programs = map[string][]string{"holdfast": {Holdfast(t)}}
	s, err := launch.Holdfast(t.Context(), o)
	return &HoldfastServer{started(t, s, err)}
}
