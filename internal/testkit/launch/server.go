//go:build unix

package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/shim"
)

// StartTimeout is how long a server may take until it serves. A server that ends is noticed
// immediately. Starts are slow on a busy machine: a kube-apiserver alone needs a quarter of a
// minute of two processors.
const StartTimeout = 4 * time.Minute

// Server is a program that serves at an address. It can be ended and started again, with its data.
// Its fields are set before it is started.
type Server struct {
	// Name is the program's, for people.
	Name string
	// URL is that of this server alone as a backend. Empty: it is none.
	URL string
	// Diskless: it stores nothing itself.
	Diskless bool
	// Disk is the disk of its logs, and Clock its clock. Nil: the machine's.
	Disk  *shim.Disk
	Clock *shim.Clock
	// Secret is the password or the token of its administrator. Empty: every client is one.
	Secret string

	addr    string
	command Command
	// ready returns nil if the process that was started serves. Nil: it serves when it listens.
	ready func(context.Context, *Process) error
	// remains waits until nothing of a process is left that prevents the next start. Optional.
	remains func(*Process) error

	mu   sync.Mutex
	proc *Process
}

// Addr returns the address for clients, "127.0.0.1:port".
func (s *Server) Addr() string { return s.addr }

// Dir returns its folder.
func (s *Server) Dir() string { return s.command.Dir }

// Path returns the path of a file in its folder.
func (s *Server) Path(file string) string { return filepath.Join(s.command.Dir, file) }

// Account returns the user and the group that it runs as; nil: those of this process.
func (s *Server) Account() *syscall.Credential { return s.command.Account }

// Process returns the newest run; nil before the first.
func (s *Server) Process() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// Launch starts the program and does not wait until it serves.
func (s *Server) Launch() error {
	c := s.command
	c.Disk = s.Disk
	if s.Clock != nil {
		c.Env = append(slices.Clip(c.Env), s.Clock.Env()...)
	}
	p, err := Start(c)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc = p
	return nil
}

// Ready waits until the server serves. Errors: those of [Process.Await].
func (s *Server) Ready(ctx context.Context) error {
	p := s.Process()
	return p.Await(ctx, StartTimeout, func(ctx context.Context) error {
		if s.ready == nil {
			return listens(ctx, s.addr)
		}
		return s.ready(ctx, p)
	})
}

// Start starts the server, for the first time or after its end, and waits until it serves.
func (s *Server) Start(ctx context.Context) error {
	if err := s.Launch(); err != nil {
		return err
	}
	return s.Ready(ctx)
}

// Kill ends the server, and everything that it started, with SIGKILL, and waits until nothing is
// left that prevents its next start.
func (s *Server) Kill() error {
	p := s.Process()
	if p == nil {
		return nil
	}
	err := p.Kill()
	if err == nil && s.remains != nil {
		err = s.remains(p)
	}
	return err
}

// Shutdown ends the server as its operator would in a hurry: its clients are told, if the kind does
// that.
func (s *Server) Shutdown() error {
	p := s.Process()
	if p == nil || s.command.Interrupt == nil {
		return s.Kill()
	}
	return p.Ask(s.command.Interrupt)
}

// End ends the server at the end of its use. Errors: ErrEnded if it has ended by itself.
func (s *Server) End() error {
	p := s.Process()
	if p == nil {
		return nil
	}
	return p.End()
}

func listens(ctx context.Context, addr string) error {
	conn, err := dial(ctx, addr)
	if err != nil {
		return err
	}
	_ = conn.Close() // nothing was sent
	return nil
}

// write writes files into the folder of the server, readable for its account.
func (s *Server) write(files map[string]string) error {
	var err error
	for name, text := range files {
		path := s.Path(name)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600), Chown(path, s.command.Account))
	}
	if err != nil {
		return fmt.Errorf("files of %s: %w", s.Name, err)
	}
	return nil
}
