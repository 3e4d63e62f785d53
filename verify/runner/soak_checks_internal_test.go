package runner

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	neturl "net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	consul "github.com/hashicorp/consul/api"
	_ "github.com/jackc/pgx/v5/stdlib"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/internal/retry"
)

// looks returns the functions that read the sizes of the stores of clusters, by the URL of the
// backend. For the kinds that are not here, only the sizes of their processes are known.
func looks() map[string]func(ctx context.Context, url string, s sizes) error {
	return map[string]func(context.Context, string, sizes) error{
		"redis": lookAtRedis, "redlock": lookAtRedis, "etcd": lookAtEtcd, "zookeeper": lookAtZooKeeper, "consul": lookAtConsul,
		"postgres": lookAtPostgres, "postgres+advisory": lookAtAdvisory, "mysql": lookAtMySQL, "mysql+getlock": lookAtUserLocks,
	}
}

// look reads the sizes of a store, or fails the test.
func look(t *testing.T, kind, url string, s sizes) {
	t.Helper()
	f, ok := looks()[kind]
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := f(ctx, url, s); err != nil {
		t.Fatalf("look at %s: %v", kind, err)
	}
}

// hosts returns the hosts of a backend's URL.
func hosts(url string) []string {
	_, rest, _ := strings.Cut(url, "://")
	rest = rest[strings.IndexByte(rest, '@')+1:]
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		rest = rest[:i]
	}
	return strings.Split(rest, ",")
}

// dsn returns the address of the database of a mysql or mysql+getlock URL, for the driver.
func dsn(raw string) string {
	u, err := neturl.Parse(raw)
	if err != nil {
		return err.Error() // the driver refuses it
	}
	return "root@tcp(" + u.Host + ")" + u.Path
}

// number sends a word to a server, and returns the first number in its answer that matches the
// pattern.
func number(ctx context.Context, addr, word string, pattern *regexp.Regexp) (int64, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if end, ok := ctx.Deadline(); ok {
		err = conn.SetDeadline(end)
	}
	_, err2 := io.WriteString(conn, word)
	text, err3 := io.ReadAll(conn)
	if err := errors.Join(err, err2, err3); err != nil {
		return 0, err
	}
	found := pattern.FindSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("%q says %q", addr, text)
	}
	return strconv.ParseInt(string(found[1]), 10, 64)
}

func lookAtRedis(ctx context.Context, url string, s sizes) error {
	for _, addr := range hosts(url) {
		n, err := number(ctx, addr, "DBSIZE\r\nQUIT\r\n", regexp.MustCompile(`^:(\d+)`))
		if err != nil {
			return err
		}
		s["keys"] += n
	}
	return nil
}

func lookAtZooKeeper(ctx context.Context, url string, s sizes) error {
	var err error
	s["keys"], err = number(ctx, hosts(url)[0], "srvr", regexp.MustCompile(`Node count: (\d+)`))
	return err
}

// lookAtEtcd also compacts, as any long-lived etcd requires: the timer of etcd's own compaction
// begins again whenever a member crashes.
func lookAtEtcd(ctx context.Context, url string, s sizes) error {
	c, err := clientv3.New(clientv3.Config{Endpoints: hosts(url), Context: ctx})
	if err != nil {
		return err
	}
	defer c.Close()
	for { // etcd gives up a request for which the disk takes too long
		err := lookOnce(ctx, c, s)
		if err == nil || !retry.Pause(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

func lookOnce(ctx context.Context, c *clientv3.Client, s sizes) error {
	keys, err := c.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	leases, err := c.Leases(ctx)
	if err != nil {
		return err
	}
	s["keys"], s["leases"] = keys.Count, int64(len(leases.Leases))
	_, err = c.Compact(ctx, keys.Header.Revision)
	if err != nil && strings.Contains(err.Error(), "has been compacted") { // by a request whose answer was given up
		err = nil
	}
	return err
}

func lookAtConsul(ctx context.Context, url string, s sizes) error {
	pool := new(http.Transport)
	defer pool.CloseIdleConnections()
	c, err := consul.NewClient(&consul.Config{Address: hosts(url)[0], HttpClient: &http.Client{Transport: pool}})
	if err != nil {
		return err
	}
	how := new(consul.QueryOptions).WithContext(ctx)
	keys, _, err := c.KV().Keys("", "", how)
	sessions, _, err2 := c.Session().List(how)
	s["keys"], s["consul sessions"] = int64(len(keys)), int64(len(sessions))
	return errors.Join(err, err2)
}

func lookAtPostgres(ctx context.Context, url string, s sizes) error {
	q := map[string]string{"server connections": "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"}
	for _, table := range []string{"locks", "leases", "sessions", "tombs", "losses"} {
		q[table+" rows"] = "SELECT count(*) FROM holdfast." + table
	}
	return count(ctx, "pgx", url, q, s)
}

func lookAtMySQL(ctx context.Context, url string, s sizes) error {
	q := map[string]string{"server connections": "SELECT count(*) FROM information_schema.PROCESSLIST WHERE USER = 'root'"}
	for _, table := range []string{"locks", "leases", "sessions", "tombs", "losses"} {
		q[table+" rows"] = "SELECT count(*) FROM holdfast_" + table
	}
	return count(ctx, "mysql", dsn(url), q, s)
}

func lookAtAdvisory(ctx context.Context, url string, s sizes) error {
	q := map[string]string{"server connections": "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"}
	for _, table := range []string{"leases", "sessions", "waiters"} {
		q[table+" rows"] = "SELECT count(*) FROM holdfast_advisory." + table
	}
	return count(ctx, "pgx", "postgres"+strings.TrimPrefix(url, "postgres+advisory"), q, s)
}

func lookAtUserLocks(ctx context.Context, url string, s sizes) error {
	q := map[string]string{"server connections": "SELECT count(*) FROM information_schema.PROCESSLIST WHERE USER = 'root'"}
	for _, table := range []string{"leases", "sessions"} {
		q[table+" rows"] = "SELECT count(*) FROM holdfast_getlock_" + table
	}
	return count(ctx, "mysql", dsn(url), q, s)
}

// count runs queries that return one number each.
func count(ctx context.Context, driver, dsn string, queries map[string]string, s sizes) error {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	for name, q := range queries {
		var n int64
		if err := db.QueryRowContext(ctx, q).Scan(&n); err != nil {
			return fmt.Errorf("%s: %w", q, err)
		}
		s[name] = n
	}
	return nil
}
