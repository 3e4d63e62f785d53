//go:build unix

package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// printed is what "holdfast certs --json" prints.
type printed struct{ Dir, Serve, Client, Principal string }

func certsJSON(t *testing.T, args ...string) printed {
	t.Helper()
	r := run(t, command(t, "", append([]string{"certs", "--json"}, args...)...))
	var p printed
	if err := json.Unmarshal([]byte(r.out), &p); err != nil || r.status != 0 {
		t.Fatalf("%v: %+v", err, r)
	}
	return p
}

// The line that certs init prints starts a server, on which the client with the printed URL is its
// principal, a second client becomes one with the printed line of the policy, and a client without a
// certificate, or with one of another authority, is refused. The certificate of a client is none of a server.
func TestCertsServe(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(testserver.Dir(t), "it's a folder")
	made := certsJSON(t, "init", dir)
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	here := func(url string) string { return strings.Replace(url, "localhost:7420", addr, 1) }
	server := testserver.Start(t, testserver.Command{Path: "sh", Args: []string{
		"-c", "exec " + strings.Replace(made.Serve, "holdfast serve", `"$0" serve "$@"`, 1), binary,
		"--listen", addr, "--data-dir", filepath.Join(testserver.Dir(t), "data"),
	}})
	first := here(made.Client)
	server.Await(time.Minute, func(context.Context) error {
		if r := run(t, command(t, first, "acquire", "begun", "--ttl", "1m")); r.status != 0 {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	if r := run(t, command(t, first, "break", "begun", "--reason", "test", "--yes")); r.status != 0 {
		t.Errorf("break: %+v", r)
	}
	audited(t, server, `"act":"break","principal":"client"`)
	ca, pair, _ := strings.Cut(first, "&")
	_, foreign, _ := strings.Cut(certsJSON(t, "init", filepath.Join(testserver.Dir(t), "other")).Client, "&")
	for what, url := range map[string]string{"without a certificate": ca, "of another authority": ca + "&" + foreign} {
		if r := run(t, command(t, url, "acquire", "x", "--try")); r.status == 0 {
			t.Errorf("%s: %+v", what, r)
		}
	}
	second := certsJSON(t, "client", dir, "billing")
	policy := filepath.Join(dir, "policy.yaml")
	text, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	more := strings.Replace(string(text), "principals:\n", "principals:\n  "+second.Principal+"\n", 1) + "- {to: [billing], locks: [billing], verbs: [acquire]}\n"
	if err := os.WriteFile(policy, []byte(more), 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, time.Minute, "the new principal is known", func() bool {
		return run(t, command(t, here(second.Client), "acquire", "billing/1", "--try", "--ttl", "1s")).status == 0
	})
	if r := run(t, command(t, here(second.Client), "acquire", "x", "--try")); r.status == 0 || !strings.Contains(r.stderr, "no grant allows billing") {
		t.Errorf("without a grant: %+v", r)
	}
	posing := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	fake := testserver.Start(t, testserver.Command{Path: binary, Args: []string{
		"serve", "--listen", posing, "--data-dir", filepath.Join(testserver.Dir(t), "data"),
		"--tls-cert", filepath.Join(dir, "client.pem"), "--tls-key", filepath.Join(dir, "client.key"),
	}})
	fake.Await(time.Minute, func(context.Context) error {
		r := run(t, command(t, strings.Replace(ca, addr, posing, 1)+"&"+pair+"&server_name=client", "ls"))
		if !strings.Contains(r.stderr, "incompatible key usage") {
			return fmt.Errorf("a client that poses as a server: %+v", r)
		}
		return nil
	})
}

// Files are for their owner only, and what could be wrong with the arguments and the folder is refused
// before anything is written.
func TestCertsRefuse(t *testing.T) {
	t.Parallel()
	root := testserver.Dir(t)
	at := func(name string) string { return filepath.Join(root, name) }
	good := at("good")
	certsJSON(t, "init", good, "--host", "locks.example.com", "--host", "10.0.0.7")
	for _, name := range []string{"ca.pem", "ca.key", "server.pem", "server.key", "client.pem", "client.key", "policy.yaml"} {
		info, err := os.Lstat(filepath.Join(good, name))
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	others := at("others") // of another user
	if err := os.Mkdir(others, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		others = "/"
	} else if err := os.Chown(others, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	for dir, mode := range map[string]os.FileMode{"open": 0o777, "half": 0o700, "linked": 0o700} {
		if err := os.Mkdir(at(dir), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(at(dir), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(at("half/server.key"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{"link": "half", "linked/client.key": "../elsewhere"} {
		if err := os.Symlink(to, at(from)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"init", good}, 1, "exists"},
		{[]string{"init", at("half")}, 1, "server.key"},
		{[]string{"init", at("linked")}, 1, "client.key"},
		{[]string{"init", at("link")}, 1, "symbolic link"},
		{[]string{"init", at("open")}, 1, "other users can write"},
		{[]string{"init", others}, 1, "belongs to the user"},
		{[]string{"init", at("a\nb")}, 64, "DIR"},
		{[]string{"init", ""}, 64, "DIR"},
		{[]string{"init", at("h"), "--host", "a\nb"}, 64, `a\\nb`},
		{[]string{"init", at("h"), "--host", "*.example.com"}, 64, "name"},
		{[]string{"client", good, "evil\nprincipals: {}"}, 64, "name"},
		{[]string{"client", good, "../x"}, 64, "name"},
		{[]string{"client", good, strings.Repeat("x", 65)}, 64, "64"},
		{[]string{"client", good, "ca"}, 1, "exists"},
		{[]string{"client", good, "server"}, 1, "exists"},
		{[]string{"client", at("none"), "x"}, 1, "no such file"},
		{[]string{"client", others, "x"}, 1, ""},
		{[]string{"server", good, "server"}, 1, "exists"},
	} {
		r := run(t, command(t, "", append([]string{"certs"}, c.args...)...))
		if r.status != c.status || !strings.Contains(r.stderr, c.says) {
			t.Errorf("certs %q: %+v, want %d and %q", c.args, r, c.status, c.says)
		}
	}
	for dir, want := range map[string]int{"half": 1, "open": 0, "linked": 1, "h": -1} {
		entries, err := os.ReadDir(at(dir))
		if got := len(entries); want >= 0 && got != want || want < 0 && err == nil {
			t.Errorf("%s has %v", dir, entries)
		}
	}
	if text, err := os.ReadFile(at("half/server.key")); string(text) != "mine" {
		t.Errorf("the file is %q, %v", text, err)
	}
}
