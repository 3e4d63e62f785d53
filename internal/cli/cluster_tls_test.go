//go:build unix

package cli_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// opsToken is the token of the principal ops, who may administer the cluster, and guestToken that of one who may
// not.
const opsToken, guestToken = "ops-token", "guest-token"

// startSecureTrio starts nodes with TLS between them, and with TLS and a policy for their clients.
func startSecureTrio(t *testing.T, serveFlags ...string) *trio {
	t.Helper()
	c := newTrio(t, "https")
	dir, peers := filepath.Join(c.dir, "certs"), filepath.Join(c.dir, "peer-certs")
	made := certsJSON(t, "init", dir)
	certsJSON(t, "peers", peers, "--host", "127.0.0.1")
	hash := func(token string) string {
		sum := sha256.Sum256([]byte(token))
		return hex.EncodeToString(sum[:])
	}
	policy := "principals:\n  client: {certificates: [client]}\n  ops: {tokens: [" + hash(opsToken) + "]}\n  guest: {tokens: [" + hash(guestToken) + "]}\n" +
		"grants:\n- {to: [client], locks: ['*'], verbs: [acquire, read, break, admin]}\n- {to: [ops], locks: ['*'], verbs: [admin]}\n- {to: [guest], locks: ['*'], verbs: [acquire, read]}\n" +
		"limits: [{to: [client], requests: 100000, locks: 100000}]\n"
	for name, text := range map[string]string{"policy.yaml": policy, "ops": opsToken, "guest": guestToken} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := func(folder, name string) string { return filepath.Join(folder, name) }
	c.nodeFlags = []string{"--peer-cert", at(peers, "node.pem"), "--peer-key", at(peers, "node.key"), "--peer-ca", at(peers, "ca.pem")}
	c.serveFlags = append([]string{
		"--tls-cert", at(dir, "server.pem"), "--tls-key", at(dir, "server.key"), "--tls-client-ca", at(dir, "ca.pem"), "--policy", at(dir, "policy.yaml"),
	}, serveFlags...)
	c.scheme, c.params = "holdfasts", made.Client[strings.Index(made.Client, "?"):]
	for i := range c.nodes {
		c.start(i)
	}
	return c
}

// as returns the URL of nodes for the client with a token, and no certificate.
func (c *trio) as(token string, nodes ...int) string {
	url, _, _ := strings.Cut(c.url(nodes...), "&")
	return url + "&token_file=" + filepath.Join(c.dir, "certs", token)
}

// Every command for a cluster works where all connections have TLS and every client has an identity, by
// certificate and by token, and of several nodes in the URL those that are down are passed over. A client without
// the right changes nothing.
func TestClusterTLS(t *testing.T) {
	t.Parallel()
	c := startSecureTrio(t)
	c.becomes(0, 74)
	ca, _, _ := strings.Cut(c.url(0), "&")
	for what, url := range map[string]string{"without the right": c.as("guest", 0), "without an identity": ca, "without TLS": "holdfast://" + c.addrs[0]} {
		if r := run(t, command(t, url, "cluster", "init")); r.status == 0 {
			t.Errorf("%s: %+v", what, r)
		}
	}
	if r := run(t, command(t, c.url(0), "cluster", "status")); r.status != 74 || strings.Contains(r.out, "leader") {
		t.Errorf("a cluster was formed by a client that may not: %+v", r)
	}
	c.form()
	c.nodes[0].Kill()
	c.becomes(1, 1)
	status := command(t, ca[:strings.LastIndex(ca, "?")], "cluster", "status")
	for what, r := range map[string]result{
		"with a certificate":    run(t, command(t, c.url(0, 1, 2), "cluster", "status")),
		"with a token":          run(t, command(t, c.as("ops", 0, 1, 2), "cluster", "status")),
		"doctor":                run(t, command(t, c.url(0, 1, 2), "doctor")),
		"with HOLDFAST_BACKEND": run(t, command(t, c.url(1), "cluster", "status")),
	} {
		if r.status != 1 || !strings.Contains(r.out, "unreachable") {
			t.Errorf("%s: %+v", what, r)
		}
	}
	hosts, _, _ := strings.Cut(c.url(0, 1, 2), "&")
	withFile := command(t, hosts, "cluster", "status")
	withFile.Env = append(withFile.Env, "HOLDFAST_TOKEN_FILE="+filepath.Join(c.dir, "certs", "ops"))
	if r := run(t, withFile); r.status != 1 {
		t.Errorf("several nodes and a token in HOLDFAST_TOKEN_FILE: %+v", r)
	}
	if r := run(t, status); r.status != 74 || !strings.Contains(r.stderr, "does not answer") {
		t.Errorf("without the authority: %+v", r)
	}
	c.start(0)
	c.becomes(0, 0)
	if r := run(t, command(t, c.url(0, 1, 2), "cluster", "compact")); r.status != 0 || strings.Count(r.out, " of 2048.0 MiB") != 3 {
		t.Errorf("compact: %+v", r)
	}
	c.everyCommand()
}
