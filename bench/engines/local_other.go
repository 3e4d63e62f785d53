//go:build !unix

package engines

import (
	"context"
	"errors"
)

// local is a server that can be started here.
type local struct{ engine, program string }

// locals returns none: servers are started on Unix only.
func locals(string) []local { return nil }

func (local) start(context.Context) (started, func() error, error) {
	return started{}, nil, errors.ErrUnsupported
}
