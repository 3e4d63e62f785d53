package policy_test

import (
	"go/ast"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fuzzed maps each function that parses foreign input (URLs, keys, messages, answers, requests,
// files, names) to the fuzz target that feeds it. A target is in the tests of the same folder
// unless it is named with one.
func fuzzed() map[string]string {
	return map[string]string{
		"backend.Endpoint":                      "FuzzEndpoint",
		"backend.UnescapeSegment":               "FuzzSegment",
		"backend.ValidateName":                  "FuzzValidateName",
		"fence.Parse":                           "FuzzParse",
		"fence.ParseStamp":                      "FuzzParseStamp",
		"fence/redisfence.parseStamp":           "FuzzStamp",
		"backend/consullock.parseURL":           "FuzzURL",
		"backend/etcdlock.decode":               "FuzzKeys",
		"backend/etcdlock.decodeAll":            "FuzzKeys",
		"backend/etcdlock.parse":                "FuzzKeys",
		"backend/etcdlock.parseClaim":           "FuzzKeys",
		"backend/etcdlock.parseSession":         "FuzzKeys",
		"backend/etcdlock.parseURL":             "FuzzURL",
		"backend/k8slock.objectName":            "FuzzObjectName",
		"backend/k8slock.open":                  "FuzzRecord",
		"backend/k8slock.parseKubeconfig":       "FuzzKubeconfig",
		"backend/k8slock.parseURL":              "FuzzURL",
		"backend/mysqllock.parseURL":            "FuzzURL",
		"backend/pglock.decodeEvent":            "FuzzEvents",
		"backend/pglock.parseURL":               "FuzzURL",
		"backend/redislock.decodeRenewal":       "FuzzReply",
		"backend/redislock.parseEvent":          "FuzzPush",
		"backend/redislock.parseGroup":          "FuzzURL",
		"backend/redislock.parsePush":           "FuzzPush",
		"backend/redislock.parseURL":            "FuzzURL",
		"backend/redlock.parse":                 "FuzzAnswer",
		"backend/redlock.parseURL":              "FuzzURL",
		"backend/remotelock.parseLines":         "FuzzBatch",
		"backend/remotelock.decode":             "internal/wire.FuzzAnswers",
		"backend/remotelock.read":               "FuzzStream",
		"backend/sqlitelock.decodeNotification": "FuzzNotification",
		"backend/sqlitelock.parseTarget":        "FuzzTarget",
		"backend/sqlitelock.parseURL":           "FuzzTarget",
		"backend/zklock.parseEntry":             "FuzzEntry",
		"backend/zklock.parseURL":               "FuzzURL",
		"internal/certs.Parse":                  "FuzzParse",
		"internal/remoteurl.Parse":              "FuzzURL",
		"internal/sqllease.decodeGrant":         "FuzzNotifications",
		"internal/sqllease.decodeNotification":  "FuzzNotifications",
		"internal/waiters.Parse":                "internal/sqllease.FuzzNotifications",
		"internal/wire.Decode":                  "FuzzDecodeAcquire",
		"open.URL":                              "FuzzUnknownScheme",
		"server/access.Parse":                   "FuzzParse",
		"server.decodeQuery":                    "FuzzRequest",
		"server.decodeVars":                     "FuzzPath",
		"server.parseAcquire":                   "FuzzRequest",
		"server.parseItem":                      "FuzzRequest",
		"server.parseRef":                       "FuzzRequest",
		"server.parseRelease":                   "FuzzRequest",
		"verify/history.ParseLine":              "FuzzRead",
		"verify/history.Read":                   "FuzzRead",
		"verify/runner.Shown":                   "FuzzEndpoints",
		"verify/runner.decodeRecord":            "FuzzRecord",
		"verify/runner.parseEndpoints":          "FuzzEndpoints",
	}
}

// unfuzzed are functions with such a name that parse no foreign input.
func unfuzzed() map[string]string {
	return map[string]string{
		"internal/wire.decodeText":     "writes the text of an error",
		"backend/k8slock.decode":       "hands an answer to encoding/json",
		"server/embedded.decodeBoot":   "hands a value to encoding/json",
		"server/embedded.parseID":      "hands a value to strconv",
		"examples/internal/web.Decode": "hands a body of bounded size to encoding/json",
		"examples/internal/web.Parse":  "hands arguments to package flag",
	}
}

// TestPolicyFuzz: every function that parses or decodes is fuzzed. The seeds, and inputs that once
// made a target fail, are under testdata/fuzz and run with every go test.
func TestPolicyFuzz(t *testing.T) {
	t.Parallel()
	m, err := parseModule(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	parser := regexp.MustCompile(`^([pP]arse|[dD]ecode|[uU]nescape)([A-Z]|$)`)
	functions, targets := make(map[string]bool), make(map[string]bool)
	want, exempt := fuzzed(), unfuzzed()
	for _, s := range m.sources {
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			name := s.folder + "." + f.Name.Name
			if s.test {
				targets[name] = targets[name] || strings.HasPrefix(f.Name.Name, "Fuzz")
				continue
			}
			functions[name] = true
			if ours := !strings.HasPrefix(s.folder, "internal/testserver") && !strings.HasPrefix(s.folder, "internal/mutants") && !strings.HasPrefix(s.folder, "bench"); !ours {
				continue
			}
			if parser.MatchString(f.Name.Name) && want[name] == "" && exempt[name] == "" {
				t.Errorf("%s: %s reads what others wrote, and no fuzz target is named for it in internal/policy/fuzz_test.go", s.name, f.Name.Name)
			}
		}
	}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(exempt))) {
		if !functions[name] {
			t.Errorf("internal/policy/fuzz_test.go names %s, which is not there", name)
		}
	}
	for name, target := range want {
		if !strings.Contains(target, ".") {
			target = name[:strings.LastIndexByte(name, '.')] + "." + target
		}
		if !targets[target] {
			t.Errorf("%s is to be fuzzed by %s, which is not there", name, target)
		}
	}
}
