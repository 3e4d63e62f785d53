package rowlock

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-io/holdfast/fence"
)

// Dialect is the SQL dialect of the database.
type Dialect uint8

// The dialects. MySQL and MariaDB differ in the syntax of a shared lock and of a time-out.
const (
	Postgres Dialect = iota + 1 // 9.5 or newer
	MySQL                       // 8.0 or newer
	MariaDB                     // 10.6 or newer
)

// maxIdentifier is the longest name of a table or a column, in bytes: PostgreSQL truncates longer
// names, and would find another table.
const maxIdentifier = 63

// MaxKeys is the maximum number of rows that one call locks, and MaxArgs the maximum number of
// values of a Where.
const (
	MaxKeys = 1000
	MaxArgs = 1000
)

// Config names a table and its key.
type Config struct {
	// Schema is the schema of the table; in MySQL, the database. Default: the connection's search
	// order. Optional.
	Schema string
	// Table is the name of the table as the catalogue has it: PostgreSQL converts a name that was
	// written without quotes to lower case. The name is quoted, so any character is allowed.
	// Required.
	Table string
	// Key is the column that identifies a row. It must have a unique index: without one, MySQL and
	// MariaDB lock every row of the table. Required.
	Key string
}

// Locker locks rows of one table. Its methods are safe for concurrent use, each call with a
// transaction of its own.
type Locker struct {
	dialect Dialect
	name    string // as given, for errors
	table   string // quoted
	key     string // quoted
}

// New returns a locker. It sends nothing.
//
// Errors: *fence.InvalidError for an invalid dialect or name.
func New(d Dialect, cfg Config) (*Locker, error) {
	if d < Postgres || d > MariaDB {
		return nil, &fence.InvalidError{Field: "dialect", Value: strconv.Itoa(int(d)), Bound: "Postgres, MySQL or MariaDB"}
	}
	l := &Locker{dialect: d, name: cfg.Table}
	table, err := l.quote("table", cfg.Table)
	if err != nil {
		return nil, err
	}
	if cfg.Schema != "" {
		schema, err := l.quote("schema", cfg.Schema)
		if err != nil {
			return nil, err
		}
		table = schema + "." + table
	}
	l.table = table
	l.key, err = l.quote("key", cfg.Key)
	return l, err
}

// quote converts any name to a quoted identifier.
func (l *Locker) quote(field, name string) (string, error) {
	if name == "" || len(name) > maxIdentifier || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		return "", &fence.InvalidError{
			Field: field, Value: strconv.QuoteToASCII(name[:min(len(name), maxIdentifier)]),
			Bound: fmt.Sprintf("a name of 1 to %d bytes of UTF-8 without NUL", maxIdentifier),
		}
	}
	mark := "`"
	if l.dialect == Postgres {
		mark = `"`
	}
	return mark + strings.ReplaceAll(name, mark, mark+mark) + mark, nil
}

// columns returns the quoted names, separated by commas, or the key if there are none.
func (l *Locker) columns(field string, names []string) (string, error) {
	if len(names) == 0 {
		return l.key, nil
	}
	quoted := make([]string, len(names))
	for i, name := range names {
		q, err := l.quote(field, name)
		if err != nil {
			return "", err
		}
		quoted[i] = q
	}
	return strings.Join(quoted, ", "), nil
}

// param returns the placeholder of the n-th parameter, counted from 1.
func (l *Locker) param(n int) string {
	if l.dialect == Postgres {
		return "$" + strconv.Itoa(n)
	}
	return "?"
}

// every returns the clause that overrides sql_select_limit, which a server may set for its clients.
func (l *Locker) every() string {
	if l.dialect == Postgres {
		return ""
	}
	return " LIMIT 18446744073709551615"
}

// clause returns the locking clause at the end of a SELECT.
func (l *Locker) clause(shared bool, busy Busy) string {
	c := " FOR UPDATE"
	switch {
	case shared && l.dialect == MariaDB:
		c = " LOCK IN SHARE MODE"
	case shared:
		c = " FOR SHARE"
	}
	switch busy {
	case NoWait:
		return c + " NOWAIT"
	case SkipLocked:
		return c + " SKIP LOCKED"
	case Wait:
	}
	return c
}
