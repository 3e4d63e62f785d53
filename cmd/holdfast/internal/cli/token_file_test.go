//go:build unix

package cli_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/certs"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// Every command that takes a backend sends the token in the file that HOLDFAST_TOKEN_FILE names.
func TestTokenFileOfEachCommand(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	dir := testserver.Dir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	const token = "a+token/of=no?special%form"
	authority, err := certs.New("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(certs.Server, "", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	policy := fmt.Sprintf("principals: {job: {tokens: [%x]}}\ngrants: [{to: [job], locks: ['*'], verbs: [acquire, read, break]}]", sha256.Sum256([]byte(token)))
	for name, text := range map[string]string{
		"server.pem": string(pair.Cert), "server.key": string(pair.Key), "ca.pem": string(authority.PEM()), "policy.yaml": policy, "token": token + "\n",
	} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := func(url string) []string {
		return []string{"HOLDFAST_BACKEND=" + url, "HOLDFAST_TOKEN_FILE=" + at("token")}
	}
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	url := "holdfasts://" + addr + "?ca=" + at("ca.pem")
	server := testserver.Start(t, testserver.Command{Path: binary, Args: []string{
		"serve", "--listen", addr, "--policy", at("policy.yaml"), "--tls-cert", at("server.pem"), "--tls-key", at("server.key"), "--data-dir", at("data"),
	}})
	server.Await(2*time.Minute, func(ctx context.Context) error {
		cmd := exec.CommandContext(ctx, binary, "ls")
		cmd.Env = append(os.Environ(), env(url)...)
		return cmd.Run()
	})
	as := func(args ...string) result {
		t.Helper()
		return steadily(func() result {
			cmd := command(t, url, args...)
			cmd.Env = append(cmd.Env, env(url)...)
			return run(t, cmd)
		})
	}
	if r := steadily(func() result { return run(t, command(t, url, "ls")) }); r.status != 74 || !strings.Contains(r.stderr, "credentials") {
		t.Fatalf("without the token: %+v", r)
	}
	const lease = "lease-of-the-test-0001"
	for _, args := range [][]string{
		{"acquire", "held", "--ttl", "10m", "--lease", lease},
		{"ls"},
		{"show", "held"},
		{"renew", "held", lease},
		{"release", "held", lease},
		{"acquire", "broken", "--ttl", "10m", "--lease", lease},
		{"break", "broken", "--reason", "test", "--yes"},
		{"run", "n", "--", "true"},
		{"elect", "e", "--", "true"},
	} {
		r := as(args...)
		if gone := args[0] == "release" && r.status == 70; r.status != 0 && !gone { // an earlier try released it, without an answer
			t.Errorf("%q: %+v", args, r)
		}
	}
	for _, args := range [][]string{{"bench"}, {"bench", "--backend", url}} {
		await(t, 2*time.Minute, "a measurement", func() bool { // a round in which the disk stood still has none
			r := as(append(args, "--rounds", "1", "--time", "100ms", "--only", "own/8", "-q")...)
			if strings.Contains(r.stderr+r.out, "credentials") {
				t.Fatalf("%q: %+v", args, r)
			}
			measured := strings.Contains(r.out, "own/8")
			if !measured {
				t.Logf("%q: %+v", args, r)
			}
			return measured
		})
	}
	// What these find is no matter of this test.
	for _, args := range [][]string{{"doctor"}, {"verify", "--for", "1s", "--profile", "gentle", "--rate", "100"}} {
		if r := as(args...); strings.Contains(r.stderr+r.out, "credentials") || r.status == 64 {
			t.Errorf("%q: %+v", args, r)
		}
	}
	for args, says := range map[string]string{"watch": "watching", "elect --observe e": "no candidate leads"} {
		p := testserver.Start(t, testserver.Command{Path: binary, Args: strings.Fields(args), Env: env(url)})
		p.Await(time.Minute, func(context.Context) error {
			if !strings.Contains(p.Log(), says) {
				return errors.New(args + ": " + p.Log())
			}
			return nil
		})
	}
}
