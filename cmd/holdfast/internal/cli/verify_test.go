package cli_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/verify"
)

// A history in which a lock was granted twice.
const grantedTwice = `{"e":"header","t":1,"version":1,"session_ttl":1000000000,"backend":"paper","prefix":"p/"}
{"e":"call","t":10,"w":"1.1","op":1,"verb":"acquire","lock":"p/a","acq":"x"}
{"e":"return","t":20,"w":"1.1","op":1,"outcome":"ok","token":1,"deadline":1000000000}
{"e":"call","t":30,"w":"2.1","op":1,"verb":"acquire","lock":"p/a","acq":"y"}
{"e":"return","t":40,"w":"2.1","op":1,"outcome":"ok","token":2,"deadline":1000000000}
{"e":"footer","t":50}
`

func TestVerifySQLite(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	dir := t.TempDir()
	recorded := filepath.Join(dir, "h.jsonl")
	var r result
	wrong := regexp.MustCompile(`(?m)^ +violation +(overlap|tokens|register|model)\b`)
	for seconds := 1; ; seconds *= 2 { // a busy machine may leave too little time for the locks of the dead
		r = run(t, command(t, "", "verify", sqliteURL(t), "--for", fmt.Sprintf("%ds", 3*seconds), "--profile", "torture", "--ttl", fmt.Sprintf("%ds", seconds), "--seed", "5",
			"--history", recorded))
		if r.status != 1 && r.status != 2 || wrong.MatchString(r.out) || seconds == 4 {
			break
		}
		t.Logf("status %d\n%s%s", r.status, r.out, r.stderr)
	}
	for _, want := range []string{"\nPASS\n", "seed 5", "Not tested:", "faults of the network", "Again: holdfast verify sqlite://", "token not checked"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("the report lacks %q", want)
		}
	}
	if r.status != 0 || t.Failed() {
		t.Fatalf("status %d\n%s%s", r.status, r.out, r.stderr)
	}
	again := run(t, command(t, "", "verify", "check", recorded, "--json"))
	var v verify.Report
	if err := json.Unmarshal([]byte(again.out), &v); err != nil || again.status != 0 || v.Verdict != verify.Pass || v.Header.Seed != 5 || v.Counts.Grants == 0 {
		t.Errorf("judged again: %v %+v", err, again)
	}
	if r := run(t, command(t, "", "verify", "check", recorded, "-q")); r.status != 0 || r.out != "PASS\n" {
		t.Errorf("judged again: status %d, %q %q", r.status, r.out, r.stderr)
	}
}

// The password of a backend is in no report and no history.
func TestVerifyExitStatuses(t *testing.T) {
	t.Parallel()
	const secret = "canary-7f3a"
	dir := t.TempDir()
	recorded := filepath.Join(dir, "h.jsonl")
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, c := range []struct {
		name   string
		args   []string
		status int
		says   string
	}{
		{"a violation", []string{"verify", "check", file("twice", grantedTwice)}, 1, `granted twice: worker 1.1 (exclusive, token 1) and worker 2.1 (exclusive, token 2) both held "a"`},
		{"nothing happened", []string{"verify", "check", file("nothing", `{"e":"header","t":1,"version":1,"session_ttl":1}`)}, 2, "cut short"},
		{"no history", []string{"verify", "check", file("no", "what?")}, 3, "line 1"},
		{"no file", []string{"verify", "check", filepath.Join(dir, "none")}, 3, "none"},
		{"no backend", []string{"verify", "redis://:" + secret + "@127.0.0.1:1", "--for", "1s", "--history", recorded}, 3, "refused"},
		{"a bad profile", []string{"verify", "memory://", "--profile", "brutal"}, 64, "profile"},
		{"too short", []string{"verify", "memory://", "--for", "1ms"}, 64, "for"},
		{"a bad TTL", []string{"verify", "memory://", "--ttl", "2h"}, 64, "ttl"},
		{"a bad URL", []string{"verify", "pigeon://home"}, 64, "scheme"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := run(t, command(t, "", c.args...))
			said := r.out + r.stderr
			if slices.Contains(c.args, recorded) {
				text, err := os.ReadFile(recorded)
				if err != nil {
					t.Error(err)
				}
				said += string(text)
			}
			if r.status != c.status || !strings.Contains(said, c.says) || strings.Contains(said, secret) {
				t.Errorf("status %d, want %d, saying %q\n%s", r.status, c.status, c.says, said)
			}
		})
	}
}
