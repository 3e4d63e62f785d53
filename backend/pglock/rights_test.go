package pglock_test

import (
	"context"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// The rights that the pages give to paste are enough for the whole suite, and none of them is too much:
// without it, doctor and the first request that needs it name it.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	for page, open := range map[string]func(ctx context.Context, url string) (backend.Backend, error){
		"postgres": func(ctx context.Context, url string) (backend.Backend, error) {
			return pglock.Open(ctx, url, pglock.Config{})
		},
		"postgres+advisory": func(ctx context.Context, url string) (backend.Backend, error) {
			return pglock.OpenAdvisory(ctx, url, pglock.AdvisoryConfig{})
		},
	} {
		t.Run(page, func(t *testing.T) { t.Parallel(); leastRights(t, page, open) })
	}
}

func leastRights(t *testing.T, page string, open func(ctx context.Context, url string) (backend.Backend, error)) {
	t.Helper()
	s, disk := testserver.WithSlowDisk(t, testserver.Postgres(t))
	db := s.Database(t, "locks")
	db.Exec("REVOKE ALL ON DATABASE locks FROM PUBLIC")
	url := func(role string) string {
		return page + "://" + role + "@" + s.Addr() + "/locks?sslmode=disable"
	}
	blocks := leasetest.Rights(t, page+".md")
	if len(blocks) != 2 {
		t.Fatalf("%d blocks; want that of the owner, and that of a user", len(blocks))
	}
	as := func(role string) backend.Backend {
		b, err := open(t.Context(), url(role))
		return leasetest.Opened(t, b, err)
	}
	without := func(role string, grants []leasetest.Grant) {
		for _, g := range grants {
			db.Exec("REVOKE " + g.String() + " FROM " + role)
			leasetest.Refuses(t, as(role), wanted(g))
			db.Exec("GRANT " + g.String() + " TO " + role)
		}
	}
	statements, grants := leasetest.Statements(blocks[0])
	db.Exec(statements...)
	owner := grants[0].To
	without(owner, grants)
	leasetest.Suffices(t, as(owner)) // creates the schema
	statements, grants = leasetest.Statements(blocks[1])
	db.Exec(statements...)
	user := grants[0].To
	without(user, grants)
	leasetest.Suffices(t, as(user))
	h := leasetest.Harness(s, disk, testserver.SlowSync, func(ctx context.Context) (backend.Backend, error) {
		return open(ctx, url(user))
	})
	h.Holders = leasetest.Holders(500) // each transaction reads all of them
	backendtest.Run(t, h)
}

// wanted is what names a missing right. The server itself refuses the connection without the right to
// make one.
func wanted(g leasetest.Grant) string {
	if g.Right == "CONNECT" {
		return "the right to connect"
	}
	return g.String()
}
