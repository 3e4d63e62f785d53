package pglock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// advisoryURL returns the URL for advisory locks, for another user or address.
func advisoryURL(s *testserver.PostgresServer, user, addr string) string {
	return "postgres+advisory" + s.URLOf(user, addr)[len("postgres"):]
}

// openAdvisory opens a backend that the test closes.
func openAdvisory(t *testing.T, url string) *pglock.Advisory {
	t.Helper()
	b, err := pglock.OpenAdvisory(t.Context(), url, pglock.AdvisoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

func TestAdvisoryConformance(t *testing.T) {
	t.Parallel()
	s, disk := testserver.WithSlowDisk(t, testserver.Postgres(t))
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := pglock.OpenAdvisory(t.Context(), advisoryURL(s, "postgres", s.Addr()), pglock.AdvisoryConfig{})
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		Restart:  func(backendtest.T) { s.Kill(); disk.Without(s.Start) },
		SlowDisk: func(backendtest.T) func() { disk.Slow(testserver.SlowSync); return disk.Fast },
	})
}
