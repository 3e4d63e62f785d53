//go:build unix

package testserver

import "os"

// Demote restarts the server as a standby: it answers, and accepts no writes any more.
func (s *PostgresServer) Demote() {
	s.t.Helper()
	s.Shutdown()
	check(s.t, os.WriteFile(s.Path("data/standby.signal"), nil, 0o644)) //nolint:gosec // the server may run as another user
	s.Start()
}
