package mysqllock_test

import (
	"context"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// The rights that the pages give to paste are enough for the whole suite, and none of them is too much:
// without it, doctor and the first request that needs it name it.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	for page, open := range map[string]func(ctx context.Context, url string) (backend.Backend, error){
		"mysql": func(ctx context.Context, url string) (backend.Backend, error) {
			return mysqllock.Open(ctx, url, mysqllock.Config{})
		},
		"mysql+getlock": func(ctx context.Context, url string) (backend.Backend, error) {
			return mysqllock.OpenUserLocks(ctx, url, mysqllock.UserLocksConfig{})
		},
	} {
		t.Run(page, func(t *testing.T) { t.Parallel(); leastRights(t, page, open) })
	}
}

func leastRights(t *testing.T, page string, open func(ctx context.Context, url string) (backend.Backend, error)) {
	t.Helper()
	s, disk := testserver.WithSlowDisk(t, testserver.MariaDB(t))
	s.Exec("CREATE DATABASE locks", "DROP USER IF EXISTS ''@'localhost'")
	url := func(user string) string { return page + "://" + user + ":choose%20one@" + s.Addr() + "/locks" }
	blocks := leasetest.Rights(t, page+".md")
	if len(blocks) != 2 {
		t.Fatalf("%d blocks; want that of the owner, and that of a user", len(blocks))
	}
	for i, block := range blocks {
		statements, grants := leasetest.Statements(block)
		s.Exec(statements...)
		user := strings.Trim(strings.Split(grants[0].To, "@")[0], "'")
		as := func() backend.Backend {
			b, err := open(t.Context(), url(user))
			return leasetest.Opened(t, b, err)
		}
		for _, g := range grants {
			s.Exec("REVOKE " + g.String() + " FROM " + g.To)
			leasetest.Refuses(t, as(), strings.TrimSuffix(g.String(), "*"))
			s.Exec("GRANT " + g.String() + " TO " + g.To)
		}
		leasetest.Suffices(t, as())
		if i == 0 { // whose rights include those of the other
			continue
		}
		h := leasetest.Harness(s, disk, testserver.SlowSync, func(ctx context.Context) (backend.Backend, error) {
			return open(ctx, url(user))
		})
		h.Holders = leasetest.Holders(500) // each transaction reads all of them
		backendtest.Run(t, h)
	}
}
