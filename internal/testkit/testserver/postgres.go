//go:build unix

package testserver

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/launch"
)

// PostgresServer is a PostgreSQL server of its own, on a free loopback port. It trusts every
// client that connects (trust); the superuser is "postgres". The methods that take no context
// fail the test when they fail; they belong to the test's goroutine.
type PostgresServer struct{ timed }

// Postgres starts a server with an empty cluster, whose collation is that of a language: "a" is less than "B". settings are
// added to its command line, as in Postgres(t, "max_connections=20"). It ends with the test. It runs as the
// test's user, and as "postgres" where that is root, which PostgreSQL refuses.
func Postgres(t testing.TB, settings ...string) *PostgresServer {
	t.Helper()
	var args []string
	for _, v := range settings {
		args = append(args, "-c", v)
	}
	o := options(t, args...)
	initdb, err := o.Program("initdb")
	check(t, err)
	o.Programs = map[string][]string{"initdb": append(initdb, "--locale-provider=icu", "--icu-locale=en-US")}
	s, err := launch.Postgres(t.Context(), o)
	return &PostgresServer{timed{started(t, s, err)}}
}

// URL is the superuser's URL.
func (s *PostgresServer) URL() string { return s.URLOf("postgres", s.Addr()) }

// URLOf is the URL of another user, or by another address, as through a proxy.
func (s *PostgresServer) URLOf(name, addr string) string {
	return "postgres://" + name + "@" + addr + "/postgres?sslmode=disable"
}

// RefusePlain makes a role that is not let in without TLS. The server must have it turned on.
func (s *PostgresServer) RefusePlain(role string) {
	s.t.Helper()
	s.addRule("hostnossl all " + role + " all reject")
	s.Exec("CREATE ROLE "+role+" LOGIN", "SELECT pg_reload_conf()")
}

// WantCertificate makes a role that is not let in without a certificate of the server's ssl_ca_file.
func (s *PostgresServer) WantCertificate(role string) {
	s.t.Helper()
	s.addRule("hostssl all " + role + " all trust clientcert=verify-ca")
	s.addRule("hostnossl all " + role + " all reject")
	s.Exec("CREATE ROLE "+role+" LOGIN", "SELECT pg_reload_conf()")
}

// WantPassword makes a role that is not let in without its password.
func (s *PostgresServer) WantPassword(role, password string) {
	s.t.Helper()
	s.addRule("host all " + role + " all scram-sha-256")
	s.Exec("CREATE ROLE "+role+" LOGIN PASSWORD "+literal(password), "SELECT pg_reload_conf()")
}

// addRule puts a rule before those about who is let in.
func (s *PostgresServer) addRule(rule string) {
	s.t.Helper()
	path := s.Path("data/pg_hba.conf")
	rules, err := os.ReadFile(path) //nolint:gosec // of this test
	check(s.t, err)
	check(s.t, os.WriteFile(path, append([]byte(rule+"\n"), rules...), 0o600)) //nolint:gosec // of this test
}

// PostgresDatabase is a database of a server, as the superuser sees it.
type PostgresDatabase struct {
	t   testing.TB
	url string
}

// Database makes a database for a test that shares the server with others.
func (s *PostgresServer) Database(t testing.TB, name string) *PostgresDatabase {
	t.Helper()
	(&PostgresDatabase{t, s.URL()}).Exec("CREATE DATABASE " + name)
	return &PostgresDatabase{t, strings.Replace(s.URL(), "/postgres?", "/"+name+"?", 1)}
}

// OnPostgres runs tests on one server, side by side, each on a database of its own.
func OnPostgres(t *testing.T, tests map[string]func(*testing.T, *PostgresDatabase)) {
	t.Helper()
	pg := Postgres(t, "max_connections=200")
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			database := pg.Database(t, "test_"+strings.ToLower(name))
			t.Parallel() // it continues when all have been started
			test(t, database)
		})
	}
}

// hostile are settings of a server, a database, a role or a pooler that change what statements mean, do, return or say.
// default_transaction_read_only is not one of them: who sets it wants no writes.
func hostile() []string {
	return []string{
		"search_path = hostile, pg_catalog", "default_transaction_isolation = serializable", "default_transaction_deferrable = on", "synchronous_commit = off",
		"client_encoding = LATIN1", "client_min_messages = error", "datestyle = 'SQL, DMY'", "intervalstyle = sql_standard", "timezone = 'Asia/Kathmandu'",
		"bytea_output = escape", "extra_float_digits = -15", "standard_conforming_strings = off", "backslash_quote = off", "escape_string_warning = off",
		"array_nulls = off", "transform_null_equals = on", "quote_all_identifiers = on", "xmloption = document", "statement_timeout = '300ms'", "lock_timeout = '20ms'",
		"idle_in_transaction_session_timeout = '1s'", "plan_cache_mode = force_custom_plan", "enable_nestloop = off", "enable_indexscan = off", "enable_seqscan = on",
		"cursor_tuple_fraction = 0", "from_collapse_limit = 1", "join_collapse_limit = 1",
	}
}

// Hostile gives a role the most hostile settings in this database.
func (d *PostgresDatabase) Hostile(role string) {
	d.t.Helper()
	all := []string{
		`CREATE SCHEMA hostile`, `GRANT USAGE ON SCHEMA hostile TO PUBLIC`,
		`CREATE FUNCTION hostile.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''2000-01-01''::timestamptz'`,
	}
	for _, setting := range hostile() {
		all = append(all, `ALTER ROLE `+role+` SET `+setting)
	}
	d.Exec(all...)
}

func (s *PostgresServer) first() *PostgresDatabase { return &PostgresDatabase{s.t, s.URL()} }

// Exec runs statements as the superuser, over a connection of its own.
func (s *PostgresServer) Exec(statements ...string) {
	s.t.Helper()
	s.first().Exec(statements...)
}

// Int runs a query of one number as the superuser, over a connection of its own.
func (s *PostgresServer) Int(query string, args ...any) int64 {
	s.t.Helper()
	return s.first().Int(query, args...)
}

// URL is the superuser's URL.
func (d *PostgresDatabase) URL() string { return d.url }

// Pool connects by the driver "pgx", which the test imports. It ends with the test.
func (d *PostgresDatabase) Pool() *sql.DB {
	d.t.Helper()
	db, err := sql.Open("pgx", d.url)
	check(d.t, err)
	d.t.Cleanup(func() { _ = db.Close() })
	return db
}

// Exec runs statements as the superuser, over a connection of its own.
func (d *PostgresDatabase) Exec(statements ...string) {
	d.t.Helper()
	d.run(statements...)
}

// Int runs a query of one number as the superuser, over a connection of its own. args are put in the
// place of $1, $2 and so on.
func (d *PostgresDatabase) Int(query string, args ...any) int64 {
	d.t.Helper()
	for i, a := range args {
		query = strings.ReplaceAll(query, "$"+strconv.Itoa(i+1), literal(a))
	}
	return number(d.t, query, d.run(query))
}

func (d *PostgresDatabase) run(statements ...string) string {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), startTimeout)
	defer cancel()
	out, err := launch.PostgresRun(ctx, d.url, statements...)
	check(d.t, err)
	return out
}

// literal returns a value as SQL has it.
func literal(v any) string {
	if text, ok := v.(string); ok {
		return "'" + strings.ReplaceAll(text, "'", "''") + "'"
	}
	return fmt.Sprint(v)
}

// number returns the first row of what a query printed.
func number(t testing.TB, query, printed string) int64 {
	t.Helper()
	first, _, _ := strings.Cut(printed, "\n")
	n, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		t.Fatalf("testserver: %s: %v", query, err)
	}
	return n
}
