package sqlfence_test

import (
	"errors"
	"testing"

	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/fence/sqlfence"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// What needs a database is tested in internal/testkit/e2e.
func TestBadInput(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		d     sqlfence.Dialect
		table string
	}{{0, ""}, {9, ""}, {sqlfence.SQLite, "a b"}, {sqlfence.SQLite, "a;DROP TABLE x"}, {sqlfence.SQLite, "a.b.c"}, {sqlfence.SQLite, "1a"}} {
		var bad *fence.InvalidError
		if _, err := sqlfence.New(c.d, sqlfence.Config{Table: c.table}); !errors.As(err, &bad) {
			t.Errorf("New(%d, %q): %v", c.d, c.table, err)
		}
	}
}
