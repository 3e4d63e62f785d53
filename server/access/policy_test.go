package access_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/server"
	"github.com/holdfast-io/holdfast/server/access"
)

// hash returns what a policy has for a token.
func hash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func example() string {
	return `
principals:
  billing:
    certificates: [billing.example.com]
    tokens: [` + hash("billing-1") + `, ` + hash("billing-2") + `]
    uids: [1001]
  prometheus: {tokens: [` + hash("scrape") + `]}
  oncall: {certificates: ["spiffe://example.com/oncall", oncall@example.com], tokens: [` + hash("oncall") + `]}
  idle: {}
groups:
  operators: [oncall]
grants:
- {to: [billing], locks: [billing, "orders/eu/"], verbs: [acquire, read]}
- {to: ["group:operators"], locks: ["*"], verbs: [read, break]}
- {to: ["*"], locks: [shared], verbs: [acquire]}
`
}

func parse(t *testing.T, text string) *access.Policy {
	t.Helper()
	p, err := access.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Grants are for whole segments, add up, and nothing else is allowed.
func TestDecide(t *testing.T) {
	t.Parallel()
	p := parse(t, example())
	for _, c := range []struct {
		principal string
		verb      access.Verb
		lock      string
		grant     int
	}{
		{"billing", access.Acquire, "billing", 1},
		{"billing", access.Acquire, "billing/invoice/7", 1},
		{"billing", access.Read, "billing:7", 1},
		{"billing", access.Acquire, "billing2", 0},
		{"billing", access.Acquire, "bill", 0},
		{"billing", access.Acquire, "orders/eu/1", 1},
		{"billing", access.Acquire, "orders/eu", 0},
		{"billing", access.Break, "billing", 0},
		{"billing", access.Acquire, "", 1},
		{"billing", access.Acquire, "shared", 3},
		{"oncall", access.Break, "billing/invoice", 2},
		{"oncall", access.Acquire, "billing", 0},
		{"oncall", access.Acquire, "shared/x", 3},
		{"prometheus", access.Read, "billing", 0},
		{"idle", access.Acquire, "shared", 3},
		{"nobody", access.Acquire, "shared", 0},
		{"", access.Acquire, "shared", 0},
	} {
		d := p.Decide(c.principal, c.verb, c.lock)
		if d.Grant != c.grant || d.Allowed != (c.grant > 0) || d.Why == "" {
			t.Errorf("%s %s %q: %+v, want grant %d", c.principal, c.verb, c.lock, d, c.grant)
		}
	}
	if got := p.Principals(); len(got) != 4 || got[0] != "billing" {
		t.Errorf("principals %v", got)
	}
}

// For each limit, the first entry that names a principal and has the limit applies.
func TestQuota(t *testing.T) {
	t.Parallel()
	p := parse(t, example()+`
limits:
- {to: [billing], locks: 7}
- {to: ["group:operators", billing], waiters: 3, locks: 8}
- {to: ["*"], locks: 1, waiters: 2, requests: 5}
`)
	for name, want := range map[string]server.Quota{
		"billing": {Locks: 7, Waiters: 3, Requests: 5},
		"oncall":  {Locks: 8, Waiters: 3, Requests: 5},
		"idle":    {Locks: 1, Waiters: 2, Requests: 5},
		"unknown": {},
	} {
		if got := p.Quota(name); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// A mistake is an error that names the place. A token that was written instead of its hash is not
// repeated.
func TestParseErrors(t *testing.T) {
	t.Parallel()
	const secret = "this-is-my-token"
	for name, text := range map[string]string{
		"principals.a.tokens[1]":    "principals: {a: {tokens: [" + secret + "]}}",
		"principals.a.tokens":       "principals: {a: {tokens: [" + hash("1") + "," + hash("2") + "," + hash("3") + "]}}",
		"principals.b.tokens[1]":    "principals: {a: {tokens: [" + hash("1") + "]}, b: {tokens: [" + hash("1") + "]}}",
		"principals.b.uids":         "principals: {a: {uids: [1]}, b: {uids: [1]}}",
		"principals.b.certificates": "principals: {a: {certificates: [X.example]}, b: {certificates: [x.example]}}",
		"principals.a.certificates": `principals: {a: {certificates: [" "]}}`,
		"principals":                `principals: {"a b": {}}`,
		"groups.g":                  "groups: {g: [a]}",
		"groups":                    `principals: {a: {}}` + "\n" + `groups: {"*": [a]}`,
		"grants[1].to":              "grants: [{to: [a], locks: [x], verbs: [read]}]",
		"grants[2].to":              "principals: {a: {}}\ngrants: [{to: [a], locks: [x], verbs: [read]}, {to: ['group:g'], locks: [x], verbs: [read]}]",
		"grants[1].verbs":           "principals: {a: {}}\ngrants: [{to: [a], locks: [x], verbs: [write]}]",
		"grants[1].locks":           "principals: {a: {}}\ngrants: [{to: [a], locks: [''], verbs: [read]}]",
		"grants[1]":                 "principals: {a: {}}\ngrants: [{to: [a], verbs: [read]}]",
		"limits[1]":                 "limits: [{locks: 1}]",
		"limits[1].to":              "limits: [{to: [a], locks: 1}]",
		"limits[1].waiters":         "principals: {a: {}}\nlimits: [{to: [a], waiters: -1}]",
		"policy":                    "grant: []",
	} {
		_, err := access.Parse([]byte(text))
		var bad *backend.InvalidError
		if !errors.As(err, &bad) || bad.Field != name {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error has the token: %v", name, err)
		}
	}
	for _, text := range []string{
		"", "# nothing", "grants: []", "principals: {}", // who may do nothing at all is a mistake, or half a file
		"a: b\n---\nc: d", "grants: 7", "\t", "principals: {a: {}, a: {}}", strings.Repeat("#", 5<<20),
	} {
		if _, err := access.Parse([]byte(text)); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

// No file makes Parse panic, and what it accepts can be asked.
func FuzzParse(f *testing.F) {
	f.Add([]byte(example()))
	f.Add([]byte("principals: &a {a: *a}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := access.Parse(text)
		if err != nil {
			if !errors.Is(err, backend.ErrInvalid) {
				t.Errorf("%v", err)
			}
			return
		}
		for _, name := range p.Principals() {
			p.Decide(name, access.Read, "x")
		}
	})
}
