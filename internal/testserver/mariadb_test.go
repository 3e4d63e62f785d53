//go:build unix

package testserver_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/internal/testserver"
)

// What was committed survives the hard end of the server.
func TestMariaDBRestart(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	s.Exec("CREATE TABLE test.t (n INT PRIMARY KEY) ENGINE=InnoDB", "INSERT INTO test.t VALUES (7)")
	s.Restart()
	if n := s.Int("SELECT n FROM test.t"); n != 7 {
		t.Errorf("%d", n)
	}
}
