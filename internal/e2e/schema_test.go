package e2e_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/holdfast-io/holdfast/server/access"
)

// policySchema returns the function that checks a policy by the schema.
func policySchema(t *testing.T) func(text string) error {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(access.Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("policy.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("policy.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return func(text string) error {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			return err
		}
		return s.Validate(v)
	}
}

// The schema of a policy accepts what the server accepts and refuses what it refuses, except for what only the
// file as a whole can tell.
func TestPolicySchema(t *testing.T) {
	t.Parallel()
	valid := policySchema(t)
	page, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)<!-- file: policy.yaml -->\n```yaml\n(.*?)```").FindSubmatch(page)
	if example == nil {
		t.Fatal("docs/operations.md has no policy")
	}
	token := strings.Repeat("0aF9", 16)
	const a = "principals: {a: {}}\n"
	for _, text := range []string{
		string(example[1]), "", "{}", a, "principals: {a: }", "principals:", "grants: []", "groups: {}", "limits:",
		"principals: {a.b_c@d-e: {certificates: ['spiffe://x/y', u@x], tokens: [" + token + "], uids: [0, 4294967295]}}",
		"principals: {a: {certificates: , tokens: , uids: }}",
		a + "grants: [{to: [a, '*'], locks: [x, x/y, 'x:', '*', 'ä b'], verbs: [acquire, read, break]}]",
		a + "grants: [{to: [a], locks: [x, '*'], verbs: [read, admin]}]",
		a + "groups: {g: [a]}\ngrants: [{to: ['group:g'], locks: [x], verbs: [read]}]",
		a + "groups: {g: }\n",
		a + "limits: [{to: [a]}, {to: ['*'], locks: 0, waiters: 1, streams: 2, connections: 3, requests: 4}, {to: [a], locks: }]",
		"principals: &p {a: {}}\ngrants: []",
		"issuers: {ci: {url: 'https://ci.example.com/x', audience: h, ca: /ca.pem}, k: {url: 'http://127.0.0.1:6443', audience: h}, l: {url: 'http://[::1]:1/', audience: h}}\nprincipals: {a: {subjects: {ci: ['repo:x y'], k: }}}",
		"issuers: \nprincipals: {a: {subjects: }}",
	} {
		if _, err := access.Parse([]byte(text)); err != nil {
			t.Errorf("the server refuses\n%s\n%v", text, err)
		}
		if err := valid(text); err != nil {
			t.Errorf("the schema refuses\n%s\n%v", text, err)
		}
	}
	for _, text := range []string{
		"7", "[]", "grant: []", "principals: []", "principals: {'a b': {}}", "principals: {'': {}}", "principals: {" + strings.Repeat("a", 65) + ": {}}",
		"principals: {a: {certificate: [x]}}", "principals: {a: {certificates: x}}", "principals: {a: {certificates: [' ']}}", "principals: {a: {certificates: [x, x]}}",
		"principals: {a: {tokens: [secret]}}", "principals: {a: {tokens: [" + token + "0]}}", "principals: {a: {tokens: [" + token + ", " + token + "]}}",
		"principals: {a: {tokens: [" + token + ", " + strings.Repeat("1", 63) + "a, " + strings.Repeat("2", 63) + "a]}}",
		"issuers: {ci: {audience: h}}", "issuers: {ci: {url: 'https://x'}}", "issuers: {ci: {url: 'https://x', audience: ''}}", "issuers: {ci: {url: 'http://example.com', audience: h}}",
		"issuers: {ci: {url: 'https://x?y', audience: h}}", "issuers: {ci: {url: 'https://u@x', audience: h}}", "issuers: {ci: {url: 'https://x', audience: h, jwks: x}}", "issuers: {'c i': {url: 'https://x', audience: h}}",
		"issuers: {ci: {url: 'https://x', audience: h}}\nprincipals: {a: {subjects: {ci: ['']}}}", "issuers: {ci: {url: 'https://x', audience: h}}\nprincipals: {a: {subjects: {ci: [x, x]}}}",
		"principals: {a: {uids: [-1]}}", "principals: {a: {uids: [4294967296]}}", "principals: {a: {uids: [root]}}", "principals: {a: {uids: [7, 7]}}",
		a + "groups: {'g/h': [a]}", a + "groups: {g: ['group:h']}", a + "groups: {g: a}",
		a + "grants: {to: [a]}", a + "grants: [{to: [a], locks: [x]}]", a + "grants: [{to: [], locks: [x], verbs: [read]}]", a + "grants: [{to: [a], locks: [], verbs: [read]}]",
		a + "grants: [{to: [a], locks: [x], verbs: []}]", a + "grants: [{to: [a], locks: [x], verbs: [write]}]", a + "grants: [{to: [a], locks: [x], verbs: [admin]}]",
		a + "grants: [{to: [a], locks: [''], verbs: [read]}]", a + "grants: [{to: [a], locks: [" + strings.Repeat("x", 513) + "], verbs: [read]}]",
		a + `grants: [{to: [a], locks: ["x\ny"], verbs: [read]}]`, a + "grants: [{to: ['group:'], locks: [x], verbs: [read]}]", a + "grants: [{to: [a], locks: [x], verbs: [read], note: x}]",
		a + "limits: [{locks: 1}]", a + "limits: [{to: [a], locks: -1}]", a + "limits: [{to: [a], leases: 1}]", a + "limits: [{to: [a], locks: many}]",
	} {
		if _, err := access.Parse([]byte(text)); err == nil {
			t.Errorf("the server accepts\n%s", text)
		}
		if err := valid(text); err == nil {
			t.Errorf("the schema accepts\n%s", text)
		}
	}
	// References, and identities of two principals: the schema cannot know them.
	for _, text := range []string{
		"grants: [{to: [a], locks: [x], verbs: [read]}]", a + "groups: {g: [b]}", a + "limits: [{to: ['group:g'], locks: 1}]",
		"principals: {a: {uids: [1]}, b: {uids: [1]}}", "principals: {a: {subjects: {ci: [x]}}}",
		"issuers: {ci: {url: 'https://x', audience: h}, other: {url: 'https://x', audience: h}}",
	} {
		_, err := access.Parse([]byte(text))
		if err == nil || valid(text) != nil {
			t.Errorf("the server says %v, and the schema %v of\n%s", err, valid(text), text)
		}
	}
}
