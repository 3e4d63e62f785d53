package mysqllock_test

import (
	"context"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// The rights that the pages give to paste are enough, and none of them is too much: without it, doctor and
// the first request that needs it name it. The suite runs with them, too.
func TestLeastRights(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for page, open := range map[string]opener{"mysql": openLeases, "mysql+getlock": openLocks} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			s := testserver.MariaDB(t)
			leastUser(t, s, page, open, func(as func() backend.Backend, grants []leasetest.Grant) {
				for _, g := range grants {
					s.Exec("REVOKE " + g.String() + " FROM " + g.To)
					leasetest.Refuses(t, as(), strings.TrimSuffix(g.String(), "*"))
					s.Exec("GRANT " + g.String() + " TO " + g.To)
				}
			})
		})
	}
}

type opener = func(ctx context.Context, url string) (backend.Backend, error)

func openLeases(ctx context.Context, url string) (backend.Backend, error) {
	return mysqllock.Open(ctx, url, mysqllock.Config{})
}

func openLocks(ctx context.Context, url string) (backend.Backend, error) {
	return mysqllock.OpenUserLocks(ctx, url, mysqllock.UserLocksConfig{})
}

// leastUser makes a user with the rights that a page gives to paste, and no others, and returns its URL. check is
// called for the user who creates the tables, and then for this one.
func leastUser(t *testing.T, s *testserver.MariaDBServer, page string, open opener, check func(func() backend.Backend, []leasetest.Grant)) string {
	t.Helper()
	s.Exec("CREATE DATABASE locks", "DROP USER IF EXISTS ''@'localhost'")
	blocks := leasetest.Rights(t, page+".md")
	if len(blocks) != 2 {
		t.Fatalf("%d blocks; want that of the owner, and that of a user", len(blocks))
	}
	var url string
	for _, block := range blocks {
		statements, grants := leasetest.Statements(block)
		s.Exec(statements...)
		user := strings.Trim(strings.Split(grants[0].To, "@")[0], "'")
		url = page + "://" + user + ":choose%20one@" + s.Addr() + "/locks"
		as := func() backend.Backend {
			b, err := open(t.Context(), url)
			return leasetest.Opened(t, b, err)
		}
		check(as, grants)
		leasetest.Suffices(t, as())
	}
	return url
}

// unchecked is for leastUser.
func unchecked(func() backend.Backend, []leasetest.Grant) {}
