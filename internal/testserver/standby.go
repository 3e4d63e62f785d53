//go:build unix

package testserver

import (
	"os"
	"path/filepath"
)

// Demote restarts the server as a standby: it answers, and accepts no writes any more.
func (s *PostgresServer) Demote() {
	s.t.Helper()
	s.Shutdown()
	if err := os.WriteFile(filepath.Join(s.data(), "standby.signal"), nil, 0o644); err != nil { //nolint:gosec // the server may run as another user
		s.t.Fatalf("testserver: %v", err)
	}
	s.Start()
}
