package k8slock

import (
	"context"
	"errors"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
)

// A renewal whose session was written, but not its locks, says that it may have worked.
func TestPartOfARenewal(t *testing.T) {
	t.Parallel()
	b := &Backend{base: t.Context()}
	err := b.fail(t.Context(), opRenew, &unsentError{context.DeadlineExceeded}, true)
	if u, ok := errors.AsType[*backend.UnavailableError](err); !ok || u.MayHold {
		t.Errorf("what was not sent: %#v", err)
	}
	err = b.fail(t.Context(), opRenew, backend.PartDone(name, opRenew, err), true)
	if u, ok := errors.AsType[*backend.UnavailableError](err); !ok || !u.MayHold {
		t.Errorf("what was done in part: %#v", err)
	}
}
