package server_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

// Break evicts the holder, raises the token, and lets the next waiter in.
func TestBreak(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	a := start(t, server.Config{Logger: log.logger()})
	g := a.take("job/7", `{"owner":"stuck"}`)
	next := a.send("POST", lockPath("job/7"), `{"wait":"60s"}`)
	a.waiters("job/7", 1)
	got := want[wire.Break](a, 200, "DELETE", lockPath("job/7")+"?reason=it+hangs", "", wire.HeaderActor, "alice")
	if got.Token <= g.Token || len(got.Broken) != 1 || got.Broken[0].Owner != "stuck" || got.Name != "job/7" {
		t.Errorf("break %+v", got)
	}
	if n := next.get(t); n.status != 200 || decode[wire.Grant](t, n).Token < got.Token {
		t.Errorf("next: %d %s", n.status, n.body)
	}
	want[wire.Problem](a, 410, "PUT", lockPath("job/7")+"/leases/"+g.Lease, `{}`)
	lines := log.acts("break")
	if len(lines) != 1 {
		t.Fatalf("%d audit lines: %v", len(lines), lines)
	}
	for key, val := range map[string]any{"lock": "job/7", "reason": "it hangs", "level": "WARN", "token": float64(got.Token), "result": "broken", "claimed": "alice"} {
		if lines[0][key] != val {
			t.Errorf("audit %s is %v, want %v", key, lines[0][key], val)
		}
	}
	if who, _ := lines[0]["principal"].(string); who == "" || who != lines[0]["address"] {
		t.Errorf("principal %q; want the address", who)
	}
	if got := a.call("DELETE", lockPath("job/7")+"?why=x", ""); got.status != 400 {
		t.Errorf("unknown parameter: status %d", got.status)
	}
	if got := a.call("DELETE", lockPath("job/7")+"?lease=a%20b", ""); got.status != 400 || decode[wire.Problem](t, got).Field != "lease" {
		t.Errorf("a lease with a space: %d %s", got.status, got.body)
	}
	empty := want[wire.Break](a, 200, "DELETE", lockPath("nobody"), "")
	if empty.Broken == nil || len(empty.Broken) != 0 {
		t.Errorf("break of a free lock %+v", empty)
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	for _, n := range []string{"a/1", "a/2", "a/3", "b/1"} {
		a.take(n, `{}`)
	}
	page := want[wire.List](a, 200, "GET", "/v1/locks?prefix=a/&limit=2", "")
	if len(page.Locks) != 2 || page.Locks[0].Name != "a/1" || page.Next != "a/2" {
		t.Errorf("page %+v", page)
	}
	page = want[wire.List](a, 200, "GET", "/v1/locks?prefix=a/&limit=2&after=a/2", "")
	if len(page.Locks) != 1 || page.Locks[0].Name != "a/3" || page.Next != "" {
		t.Errorf("page %+v", page)
	}
	if all := want[wire.List](a, 200, "GET", "/v1/locks", ""); len(all.Locks) != 4 {
		t.Errorf("all %+v", all)
	}
	for _, bad := range []string{"?limit=0", "?limit=1001", "?limit=x", "?prefix=%00", "?nothing=1", "?limit=1&limit=2", "?prefix=%zz", "?prefix=%ff"} {
		if got := a.call("GET", "/v1/locks"+bad, ""); got.status != 400 {
			t.Errorf("%s: status %d", bad, got.status)
		}
	}
	if none := want[wire.List](a, 200, "GET", "/v1/locks?prefix=zzz", ""); none.Locks == nil {
		t.Error("an empty list is []")
	}
}
