package mysqllock_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// The statements of Schema create what a user who may create nothing needs, whose error tells until then that it is missing. The
// tokens begin where those of Migrate do, in any time zone.
func TestSchemaForOthers(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t, "default-time-zone=+05:00")
	s.Exec("CREATE USER locker@'%'", "GRANT SELECT, INSERT, UPDATE, DELETE ON test.* TO locker@'%'")
	for _, prefix := range []string{"", "shop_"} {
		statements, err := mysqllock.Schema(prefix)
		if err != nil {
			t.Fatal(err)
		}
		b, err := mysqllock.Open(t.Context(), s.URLOf("locker", s.Addr()), mysqllock.Config{Prefix: prefix})
		leasetest.Opened(t, b, err)
		if err := openSession(t, b); !errors.Is(err, mysqllock.ErrNoSchema) || !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("without tables: %v; it has to be ErrNoSchema", err)
		}
		each := strings.Split(strings.TrimSuffix(statements, ";\n"), ";\n")
		s.Exec(slices.Concat(each, each)...) // a second time changes nothing
		token := leasetest.Take(t, b, leasetest.Ask("n", leasetest.Session(t, b, time.Minute, nil)))
		if at := time.UnixMicro(int64(token)); time.Until(at).Abs() > time.Hour {
			t.Errorf("prefix %q: token %d is of %s", prefix, token, at)
		}
	}
	for _, prefix := range []string{"A", "9", strings.Repeat("a", 33)} {
		if _, err := mysqllock.Schema(prefix); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("prefix %q: %v", prefix, err)
		}
	}
}
