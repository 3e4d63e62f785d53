//go:build unix

package cli_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// settings returns what serve --print-config prints, by key, with the comment of each.
func settings(t *testing.T, file string, env []string, args ...string) (result, map[string]string) {
	t.Helper()
	if file != "" {
		path := filepath.Join(t.TempDir(), "serve.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	cmd := command(t, "redis://nowhere", append([]string{"serve", "--print-config"}, args...)...)
	cmd.Env = append(cmd.Env, env...)
	r := run(t, cmd)
	all := make(map[string]string)
	for line := range strings.Lines(r.out) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		all[key] = value
	}
	return r, all
}

// A flag comes before a variable, a variable before the file, and the file before the default.
func TestSettings(t *testing.T) {
	t.Parallel()
	file := `# a comment
name: of-the-file
data-dir: /var/lib/of-the-file
cluster: ["a=https://a:1", "b=https://b:1"]
peer-cert: p
peer-key: k
drain-delay: 7s
anonymous: true
`
	env := []string{"HOLDFAST_SERVE_NAME=of-the-variable", "HOLDFAST_SERVE_DATA_DIR=/var/lib/of-the-variable", "HOLDFAST_SERVE_HOST=x,y", "HOLDFAST_SERVE_POLICY="}
	r, got := settings(t, file, env, "--name", "of-the-flag", "--backend", "redis://user:hidden@h/?token=hidden")
	for key, want := range map[string]string{
		"name": "of-the-flag # --name", "data-dir": "/var/lib/of-the-variable # HOLDFAST_SERVE_DATA_DIR", "host": "[x, y] # HOLDFAST_SERVE_HOST",
		"listen": "127.0.0.1:7420 # default", "policy": `"" # default`, "backend": "redis://user:xxxxx@h/?token=xxxxx # --backend",
	} {
		if got[key] != want {
			t.Errorf("%s is %s, want %s", key, got[key], want)
		}
	}
	for key, want := range map[string]string{
		"cluster": `['a=https://a:1', 'b=https://b:1'] # `, "drain-delay": "7s # ", "anonymous": "true # ",
	} {
		if !strings.HasPrefix(got[key], want) || !strings.Contains(got[key], "serve.yaml:") {
			t.Errorf("%s is %s, want %s", key, got[key], want)
		}
	}
	if r.status != 0 || strings.Contains(r.out, "hidden") {
		t.Errorf("%+v", r)
	}
	// What is printed is such a file, except for what is hidden.
	comments := regexp.MustCompile(` # .*`)
	without := func(text string) string { return comments.ReplaceAllString(text, "") }
	if again, _ := settings(t, r.out, nil); again.status != 0 || without(again.out) != without(r.out) {
		t.Errorf("the settings that were printed are read as %+v, want %s", again, r.out)
	}
	// A list may be one value.
	if _, got := settings(t, "host: x", nil); !strings.HasPrefix(got["host"], "[x] # ") {
		t.Errorf("host is %s", got["host"])
	}
}

// Each flag has its variable, and HOLDFAST_BACKEND, which the clients on this host use, is none.
func TestSettingsHaveVariables(t *testing.T) {
	t.Parallel()
	r, all := settings(t, "", nil)
	if r.status != 0 || len(all) < 20 || all["backend"] != `"" # default` {
		t.Fatalf("%+v", r)
	}
	values := map[string]string{"false": "true", "0s": "1s"}
	for key, was := range all {
		was = strings.TrimSuffix(was, " # default")
		value, ok := values[was]
		if !ok {
			value = "127.0.0.1:1"
		}
		if other, ok := map[string]string{"log-level": "info", "log-format": "json", "quota-mib": "64", "connections-per-address": "300"}[key]; ok {
			value = other
		}
		if regexp.MustCompile(`^tls-|^cluster$|^insecure$|^backend$`).MatchString(key) {
			continue // they need others
		}
		name := "HOLDFAST_SERVE_" + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
		if r, got := settings(t, "", []string{name + "=" + value}); r.status != 0 || !strings.HasSuffix(got[key], " # "+name) {
			t.Errorf("%s=%s: %+v", name, value, r)
		}
	}
}

// What is misspelled or misplaced is refused, with its place, before anything is created.
func TestSettingsAreStrict(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	for _, c := range []struct {
		file string
		env  string
		says string
	}{
		{"nam: a\n", "", "serve.yaml:1: nam: serve has no such setting"},
		{"name: a\nlisten: x\n", "", "listen:"},
		{"\nname: [a]\n", "", "serve.yaml:2: name: must be one value"},
		{"name: {a: b}\n", "", "line 1: name: must be a value"},
		{"name: \n", "", "line 1: name: must be a value"},
		{"name: a\nname: b\n", "", "line 2: name: is there twice"},
		{"drain-delay: 7\n", "", "serve.yaml:1: drain-delay:"},
		{"anonymous: perhaps\n", "", "serve.yaml:1: anonymous:"},
		{"config: b\n", "", "config: serve has no such setting"},
		{"print-config: true\n", "", "print-config: serve has no such setting"},
		{"- name\n", "", "must be keys with values"},
		{"name: a\n---\nname: b\n", "", "must be one YAML document"},
		{"name: \"a\n", "", "yaml:"},
		{"", "HOLDFAST_SERVE_NAM=a", "HOLDFAST_SERVE_NAM: serve has no such flag"},
		{"", "HOLDFAST_SERVE_DRAIN_DELAY=7", "HOLDFAST_SERVE_DRAIN_DELAY:"},
		{"", "HOLDFAST_SERVE_CONFIG=/no/such/file", "no such file"},
		{"", "HOLDFAST_SERVE_PRINT_CONFIG=true", "HOLDFAST_SERVE_PRINT_CONFIG: serve has no such flag"},
	} {
		r, _ := settings(t, c.file, []string{c.env, "HOLDFAST_SERVE_DATA_DIR=" + dir})
		if r.status == 0 || !strings.Contains(r.stderr, c.says) {
			t.Errorf("%q, %q: %+v, want %q", c.file, c.env, r, c.says)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a folder was created")
	}
}
