package rowlock

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-io/holdfast/fence"
)

// Dialect is what the database understands.
type Dialect uint8

// The dialects. MySQL and MariaDB differ in how a shared lock and a time-out are written.
const (
	Postgres Dialect = iota + 1 // 9.5 or newer
	MySQL                       // 8.0 or newer
	MariaDB                     // 10.6 or newer
)

// maxIdentifier is the longest name of a table or a column, in bytes: PostgreSQL cuts what
// is longer, and would find another table.
const maxIdentifier = 63

// MaxKeys is how many rows one call locks at most, and MaxArgs how many values a Where may
// have.
const (
	MaxKeys = 1000
	MaxArgs = 1000
)

// Config says which rows.
type Config struct {
	// Schema is where the table is, or the database in the words of MySQL. Default: where
	// the connection looks. Optional.
	Schema string
	// Table is its name, as the catalogue has it: PostgreSQL makes lower case of what was
	// written without quotes. It is quoted, so any character will do. Required.
	Table string
	// Key is the column that names a row. It has to have a unique index: without one,
	// MySQL and MariaDB lock every row of the table. Required.
	Key string
}

// Locker locks rows of one table. Its methods may be called at once, each with a
// transaction of its own.
type Locker struct {
	dialect Dialect
	name    string // as it was given, for errors
	table   string // quoted
	key     string // quoted
}

// New makes a locker. It sends nothing.
//
// Errors: *fence.InvalidError for a dialect or a name that there cannot be.
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

// quote makes an identifier of a name, whatever is in it.
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

// columns are the names quoted, with commas; the key where there are none.
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

// param is how the n-th parameter is written, from 1.
func (l *Locker) param(n int) string {
	if l.dialect == Postgres {
		return "$" + strconv.Itoa(n)
	}
	return "?"
}

// clause is how the lock is asked for at the end of a SELECT.
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
