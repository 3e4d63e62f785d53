package pglock_test

import (
	"context"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// The rights that the pages give to paste are enough, and none of them is too much: without it, doctor and
// the first request that needs it name it. The suite runs with them, too.
func TestLeastRights(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for page, open := range map[string]opener{"postgres": openLeases, "postgres+advisory": openLocks} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			leastUser(t, testserver.Postgres(t), page, open, func(db *testserver.PostgresDatabase, as func() backend.Backend, grants []leasetest.Grant) {
				for _, g := range grants {
					db.Exec("REVOKE " + g.String() + " FROM " + g.To)
					leasetest.Refuses(t, as(), wanted(g))
					db.Exec("GRANT " + g.String() + " TO " + g.To)
				}
			})
		})
	}
}

type opener = func(ctx context.Context, url string) (backend.Backend, error)

func openLeases(ctx context.Context, url string) (backend.Backend, error) {
	return pglock.Open(ctx, url, pglock.Config{})
}

func openLocks(ctx context.Context, url string) (backend.Backend, error) {
	return pglock.OpenAdvisory(ctx, url, pglock.AdvisoryConfig{})
}

// leastUser makes a role with the rights that a page gives to paste, and no others, and returns its URL. At the end it has the most hostile settings. check is
// called for the role that owns the schema, and then for this one.
func leastUser(t *testing.T, s *testserver.PostgresServer, page string, open opener, check func(*testserver.PostgresDatabase, func() backend.Backend, []leasetest.Grant)) string {
	t.Helper()
	db := s.Database(t, "locks")
	db.Exec("REVOKE ALL ON DATABASE locks FROM PUBLIC")
	blocks := leasetest.Rights(t, page+".md")
	if len(blocks) != 2 {
		t.Fatalf("%d blocks; want that of the owner, and that of a user", len(blocks))
	}
	var url, role string
	for _, block := range blocks {
		statements, grants := leasetest.Statements(block)
		db.Exec(statements...)
		role = grants[0].To
		url = page + "://" + role + "@" + s.Addr() + "/locks?sslmode=disable"
		as := func() backend.Backend {
			b, err := open(t.Context(), url)
			return leasetest.Opened(t, b, err)
		}
		check(db, as, grants)
		leasetest.Suffices(t, as()) // the owner creates the schema
	}
	db.Hostile(role)
	return url
}

// unchecked is for leastUser.
func unchecked(*testserver.PostgresDatabase, func() backend.Backend, []leasetest.Grant) {}

// wanted is what names a missing right. The server itself refuses the connection without the right to
// make one.
func wanted(g leasetest.Grant) string {
	if g.Right == "CONNECT" {
		return "the right to connect"
	}
	return g.String()
}
