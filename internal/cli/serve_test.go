//go:build unix

package cli_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testserver"
)

// Three nodes that authenticate each other by certificates: a lock that was acquired at one is
// held at the others, also without the first, and a client without one of their certificates is
// refused.
func TestServeClusterTLS(t *testing.T) {
	t.Parallel()
	certs := testserver.NewCertificates(t)
	var peers, addrs []string
	for _, name := range []string{"a", "b", "c"} {
		peers = append(peers, fmt.Sprintf("%s=https://127.0.0.1:%d", name, testserver.FreePort(t)))
		addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t)))
	}
	var nodes []*testserver.Process
	for i, peer := range peers {
		name, _, _ := strings.Cut(peer, "=")
		nodes = append(nodes, testserver.Start(t, testserver.Command{Path: binary, Args: []string{
			"serve", "--listen", addrs[i], "--data-dir", filepath.Join(testserver.Dir(t), "data"),
			"--name", name, "--cluster", strings.Join(peers, ","),
			"--peer-cert", certs.ServerCert, "--peer-key", certs.ServerKey, "--peer-ca", certs.CA,
		}}))
	}
	nodes[0].Await(time.Minute, func(ctx context.Context) error {
		return exec.CommandContext(ctx, binary, "cluster", "init", "--backend", "holdfast://"+addrs[0]).Run()
	})
	for i, n := range nodes {
		n.Await(time.Minute, func(ctx context.Context) error {
			return exec.CommandContext(ctx, binary, "doctor", "--backend", "holdfast://"+addrs[i]).Run()
		})
	}
	if r := run(t, command(t, "holdfast://"+addrs[0], "acquire", "n", "--ttl", "10m")); r.status != 0 {
		t.Fatalf("%+v", r)
	}
	nodes[0].Kill() // it was the leader: a call during the election may report that the store is unavailable
	nodes[1].Await(time.Minute, func(ctx context.Context) error {
		return exec.CommandContext(ctx, binary, "ls", "--backend", "holdfast://"+addrs[1]).Run()
	})
	if r := run(t, command(t, "holdfast://"+addrs[1], "acquire", "n", "--try", "--ttl", "10m")); r.status != 75 {
		t.Errorf("it is held: %+v", r)
	}
	_, addr, _ := strings.Cut(peers[1], "https://")
	friend, stranger := certs.Client(t), testserver.NewCertificates(t).Client(t)
	stranger.RootCAs = friend.RootCAs
	nobody := friend.Clone()
	nobody.Certificates = nil
	for who, conf := range map[string]*tls.Config{"a stranger": stranger, "nobody": nobody} {
		if err := greet(t, addr, conf); err == nil {
			t.Errorf("%s is let in", who)
		}
	}
	if err := greet(t, addr, friend); err != nil {
		t.Errorf("one with a certificate: %v", err)
	}
	nodes[1].Kill()
	nodes[2].Await(time.Minute, func(ctx context.Context) error { // without a majority it is not ready, and says why
		res, err := fetch(ctx, http.MethodGet, "http://"+addrs[2]+"/readyz", "")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err == nil && (res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), "majority")) {
			err = fmt.Errorf("%s: %s", res.Status, text)
		}
		return err
	})
}

// greet connects and sends a request. A TLS 1.3 server refuses a certificate after the
// handshake of the client.
func greet(t *testing.T, addr string, conf *tls.Config) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "GET /version HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", addr); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}
