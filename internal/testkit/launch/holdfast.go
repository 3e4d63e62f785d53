//go:build unix

package launch

import (
	"context"
	"slices"
	"syscall"
)

// Holdfast returns our own server on a file, which is in its Path("data").
func Holdfast(_ context.Context, o Options) (*Server, error) {
	s, err := o.server("holdfast", "m1", "")
	if err != nil {
		return nil, err
	}
	s.URL = "holdfast://" + s.addr
	s.command.Argv = slices.Concat(s.command.Argv, []string{"serve", "--listen", s.addr, "--data-dir", s.Path("data")}, o.Args)
	s.command.Interrupt = syscall.SIGTERM
	s.command.Env = []string{"HOLDFAST_BACKEND="} // not the user's
	return s, nil
}
