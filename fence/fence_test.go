package fence_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/fence"
)

func TestValid(t *testing.T) {
	t.Parallel()
	for token, want := range map[fence.Token]bool{0: false, 1: true, fence.MaxToken: true, fence.MaxToken + 1: false} {
		if token.Valid() != want {
			t.Errorf("Token(%d).Valid() = %t, want %t", token, !want, want)
		}
	}
}
