package server_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

// Each refusal has a line with who sent what: of a request, of an item of a batch, and without an identity.
func TestAudit(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	a := start(t, server.Config{Authorize: operatorsBreak, Principal: caller, Audit: log.logger()})
	want[wire.Problem](a, 401, "GET", lockPath("x"), "")
	want[wire.Problem](a, 403, "DELETE", lockPath("x"), "", "Authorization", "bob", wire.HeaderActor, "alice")
	want[wire.Break](a, 200, "DELETE", lockPath("x")+"?reason=why", "", "Authorization", "op", wire.HeaderActor, "alice")
	refused := log.acts("refused")
	if len(refused) != 2 {
		t.Fatalf("%d lines: %v", len(refused), refused)
	}
	for i, want := range []map[string]any{
		{"principal": "", "verb": "read", "lock": "x", "method": "GET", "not_written": 0.0},
		{"principal": "bob", "verb": "break", "lock": "x", "method": "DELETE", "error": "operators only"},
	} {
		for key, val := range want {
			if refused[i][key] != val {
				t.Errorf("line %d: %s is %v, want %v", i, key, refused[i][key], val)
			}
		}
	}
	if broke := log.acts("break"); len(broke) != 1 || broke[0]["principal"] != "op" || broke[0]["claimed"] != "alice" {
		t.Errorf("%v", broke)
	}
}

// Each act on the cluster, done or not, and each session of the page has a line.
func TestAuditOfActs(t *testing.T) {
	t.Parallel()
	log, n := &logBuffer{}, &nodes{}
	a := start(t, server.Config{Authorize: operatorsBreak, Principal: caller, Audit: log.logger(), Cluster: n})
	op := []string{"Authorization", "op"}
	a.call("POST", "/v1/cluster/remove", `{"name":"c"}`, op...)
	a.call("GET", "/v1/cluster/snapshot", "", op...)
	n.err = server.ErrClusterRefused
	a.call("POST", "/v1/cluster/promote", `{"name":"b"}`, op...)
	cookie := a.signIn(t, "op", `{"break":true}`)
	a.call("DELETE", sessionPath, "", a.with(cookie)...)
	for act, wanted := range map[string][]map[string]any{
		"cluster": {{"action": "remove", "node": "c", "done": true}, {"action": "snapshot"}, {"action": "promote", "node": "b", "done": false}},
		"session": {{"action": "open", "break": true}, {"action": "end"}},
	} {
		lines := log.acts(act)
		if len(lines) != len(wanted) {
			t.Errorf("%s: %d lines: %v", act, len(lines), lines)
			continue
		}
		for i, w := range wanted {
			w["principal"] = "op"
			for key, val := range w {
				if lines[i][key] != val {
					t.Errorf("%s, line %d: %s is %v, want %v", act, i, key, lines[i][key], val)
				}
			}
		}
	}
}

// Refusals beyond a number in a second are counted on the next line.
func TestAuditIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &logBuffer{}
		refuse := server.Refusals(log.logger())
		for range 150 {
			refuse()
		}
		time.Sleep(time.Second)
		refuse()
		lines := log.acts("refused")
		if len(lines) != 101 || lines[99]["not_written"] != 0.0 || lines[100]["not_written"] != 50.0 {
			t.Errorf("%d lines, the last: %v", len(lines), lines[len(lines)-1])
		}
	})
}
