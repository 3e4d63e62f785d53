package server_test

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"testing"

	"github.com/holdfast-io/holdfast/server"
	"github.com/holdfast-io/holdfast/server/access"
)

// rights are the rights that the verbs need. Empty: none.
func rights() map[server.Verb]string {
	return map[server.Verb]string{
		server.Acquire: "acquire", server.Renew: "acquire", server.Release: "acquire", server.RenewMany: "acquire", server.Batch: "acquire",
		server.Read: "read", server.List: "read", server.Watch: "read", server.Break: "break",
		server.SignIn: "", server.Status: "",
	}
}

// Every route refuses a caller without an identity with 401, and one without a grant with 403, also if it has a grant
// for each other verb. A caller with the grant is served. The test visits the table of routes, so that no new route is
// forgotten.
func TestPolicyOnEveryRoute(t *testing.T) {
	t.Parallel()
	hash := func(token string) string {
		sum := sha256.Sum256([]byte(token))
		return hex.EncodeToString(sum[:])
	}
	policy, err := access.Parse([]byte(`
principals:
  idle: {tokens: [` + hash("idle") + `]}
  only-acquire: {tokens: [` + hash("acquire") + `]}
  only-read: {tokens: [` + hash("read") + `]}
  only-break: {tokens: [` + hash("break") + `]}
grants:
- {to: [only-acquire], locks: ["*"], verbs: [acquire]}
- {to: [only-read], locks: ["*"], verbs: [read]}
- {to: [only-break], locks: ["*"], verbs: [break]}
`))
	if err != nil {
		t.Fatal(err)
	}
	a := start(t, server.Config{Identify: policy.Identify, Authorize: policy.Authorize})
	as := func(token string) []string { return []string{"Authorization", "Bearer " + token} }
	open := []string{"/healthz", "/readyz", "/openapi.json", "/", "/dashboard/{file}"}
	for _, r := range server.Routes() {
		isOpen := slices.Contains(open, r.Pattern)
		for _, headers := range [][]string{nil, as("unknown"), as(hash("idle")), {"Authorization", "Basic YXBwOg=="}} {
			got := a.call(r.Method, somePath(r.Pattern), "", headers...)
			if is401 := got.status == 401; is401 == isOpen || is401 != (got.header.Get("WWW-Authenticate") != "") {
				t.Errorf("%s %s with %q: %d %s", r.Method, r.Pattern, headers, got.status, got.body)
			}
		}
		if got := a.call(r.Method, somePath(r.Pattern), "", as("idle")...); (got.status == 403) == (isOpen || r.Pattern == "/metrics" || r.Verb == server.SignIn) {
			t.Errorf("%s %s without a grant: %d %s", r.Method, r.Pattern, got.status, got.body)
		}
		needs, ok := rights()[r.Verb]
		if !ok {
			t.Errorf("the test does not know which right %s %s needs", r.Method, r.Pattern)
		}
		for _, has := range []string{"acquire", "read", "break"} {
			if has == needs && r.Verb == server.Watch {
				listen(t, a, r.Pattern, as(has)...).next(t, "watching")
				continue
			}
			if got := a.call(r.Method, somePath(r.Pattern), "", as(has)...); (got.status == 403) != (needs != "" && has != needs) || got.status == 401 {
				t.Errorf("%s %s with only the right to %s: %d %s", r.Method, r.Pattern, has, got.status, got.body)
			}
		}
	}
}
