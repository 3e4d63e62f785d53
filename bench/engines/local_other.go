//go:build !unix

package engines

import (
	"context"
	"errors"
)

// local is a server that can be started here.
type local struct{ engine, program string }

// locals are none: servers are started on Unix only.
func locals() []local { return nil }

func (local) start(context.Context) (string, func() error, error) {
	return "", nil, errors.ErrUnsupported
}
