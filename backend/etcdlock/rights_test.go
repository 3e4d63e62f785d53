package etcdlock_test

import (
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// The role that the page gives to paste is enough for the whole suite. Without reading, or without
// writing, doctor and the first request that needs it name it.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	m := testserver.StartEtcd(t, testserver.EtcdOptions{NoFsync: true})[0]
	var role, from, login string
	grant := func(kind string) {
		end := []byte(from)
		end[len(end)-1]++ // the first key behind the prefix
		m.Do("auth/role/grant", map[string]any{"name": role, "perm": map[string]any{"permType": strings.ToUpper(kind), "key": []byte(from), "range_end": end}})
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
	url := "etcd://" + login + "@" + m.Addr() + "?min_ttl=1s"
	as := func() backend.Backend {
		b := openURL(t, url)
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	leasetest.Suffices(t, as())
	for kind, missing := range map[string]string{"read": "write", "write": "read"} {
		grant(kind)
		leasetest.Refuses(t, as(), missing+" below "+from)
	}
	grant("readwrite")
	backendtest.Run(t, backendtest.Harness{
		Open:       func(t backendtest.T) backend.Backend { return openURL(t, url) },
		Restart:    func(backendtest.T) { m.Restart() },
		NoSlowDisk: "TestConformance has the same server on one",
		TTL:        shortest,
		Holders:    leasetest.Holders(1000),
	})
}
