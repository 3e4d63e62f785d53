package etcdlock_test

import (
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// Without reading, or without writing, doctor and the first request that needs it name it. The suite runs with the whole
// role, too.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	url, grant := leastRights(t, etcd(t)[0])
	as := func() backend.Backend {
		b := openURL(t, url)
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	leasetest.Suffices(t, as())
	for kind, missing := range map[string]string{"read": "write", "write": "read"} {
		from := grant(kind)
		leasetest.Refuses(t, as(), missing+" below "+from)
	}
}

// leastRights turns authentication on, with the role that the page gives to paste. It returns the URL of its user, and
// what changes the permission below the prefix that it returns.
func leastRights(t *testing.T, m *testserver.Etcd) (string, func(kind string) string) {
	t.Helper()
	var role, from, login string
	grant := func(kind string) string {
		end := []byte(from)
		end[len(end)-1]++ // the first key behind the prefix
		m.Do("auth/role/grant", map[string]any{"name": role, "perm": map[string]any{"permType": strings.ToUpper(kind), "key": []byte(from), "range_end": end}})
		return from
	}
	for line := range strings.Lines(leasetest.Rights(t, "etcd.md")[0]) {
		words := strings.Fields(line)
		switch strings.Join(words[1:3], " ") {
		case "role add":
			role = words[3]
			m.Do("auth/role/add", map[string]any{"name": role})
		case "role grant-permission":
			if words[3] != role || words[6] != "--prefix" {
				t.Fatalf("%s", line)
			}
			from = words[5]
			grant(words[4])
		case "user add":
			login = words[3]
			user, password, _ := strings.Cut(login, ":")
			m.Do("auth/user/add", map[string]any{"name": user, "password": password})
		case "user grant-role":
			m.Do("auth/user/grant", map[string]any{"user": words[3], "role": words[4]})
		default:
			t.Fatalf("%s", line)
		}
	}
	m.EnableAuth()
	return "etcd://" + login + "@" + m.Addr() + "?min_ttl=1s", grant
}
