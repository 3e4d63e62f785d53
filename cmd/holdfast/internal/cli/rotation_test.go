//go:build unix

package cli_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// The certificates of the server and the authorities of clients are replaced under 300 connections: none is
// closed, no lease is lost, and a new connection gets the new certificate. Between the two halves of a
// replacement, and with a file that is not PEM, new clients get in as before.
func TestCertificatesRotated(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const clients, ttl = 300, time.Minute
	dir := filepath.Join(testserver.Dir(t), "certs")
	certsJSON(t, "init", dir)
	at := func(name string) string { return filepath.Join(dir, name) }
	policy := "principals: {client: {certificates: [client]}}\ngrants: [{to: [client], locks: ['*'], verbs: [acquire, read]}]\n"
	if err := os.WriteFile(at("policy.yaml"), []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	server := testserver.Start(t, testserver.Command{Path: binary, Args: []string{
		"serve", "--listen", addr, "--data-dir", filepath.Join(testserver.Dir(t), "data"), "--policy", at("policy.yaml"),
		"--tls-cert", at("server.pem"), "--tls-key", at("server.key"), "--tls-client-ca", at("ca.pem"),
	}})
	var dials, failed atomic.Int64
	conf := clientTLS(t, dir, "client")
	probe := newHolder(t, "https://"+addr, "probe", conf, new(atomic.Int64), new(atomic.Int64))
	server.Await(time.Minute, func(context.Context) error { return probe.once(t.Context()) })

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	stop := make(chan struct{})
	var acquired, kept sync.WaitGroup
	defer func() { cancel(); kept.Wait() }() // also when the test fails early
	acquired.Add(clients)
	var lost atomic.Int64
	limit := make(chan struct{}, 16) // handshakes at a time: the test has few processors
	for i := range clients {
		h := newHolder(t, "https://"+addr, fmt.Sprintf("many/%d", i), conf, &dials, &failed)
		kept.Go(func() {
			limit <- struct{}{}
			err := h.acquire(ctx, ttl)
			<-limit
			acquired.Done()
			if err == nil {
				err = h.keep(ctx, ttl, stop)
			}
			if err != nil && lost.Add(1) == 1 {
				t.Errorf("%s: %v", h.name, err)
			}
		})
	}
	acquired.Wait()
	before := dials.Load()
	for i := range 2 {
		rotate(t, server, dir, addr, conf, fmt.Sprint("next", i))
	}
	close(stop)
	kept.Wait()
	if n := lost.Load(); n > 0 {
		t.Errorf("%d leases were lost", n)
	}
	if before != clients || dials.Load() != before || failed.Load() != 0 {
		t.Errorf("%d connections at first and %d in the end, of which %d failed; want %d", before, dials.Load(), failed.Load(), clients)
	}
}

// rotate replaces the certificate of the server in two steps, and adds an authority of clients.
func rotate(t *testing.T, server *testserver.Process, dir, addr string, conf *tls.Config, name string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	const unusable = "the certificates cannot be used"
	said := strings.Count(server.Log(), unusable)
	former := presented(t, addr, conf)
	certsJSON(t, "server", dir, name)
	added := filepath.Join(dir, name+"-authority")
	certsJSON(t, "init", added)
	next, err := os.ReadFile(at(name + ".pem"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(at("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	more, err := os.ReadFile(filepath.Join(added, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(at(name+".key"), at("server.key")), os.WriteFile(at("server.pem"), []byte("half"), 0o600)); err != nil {
		t.Fatal(err)
	}
	await(t, time.Minute, "the server has seen the half", func() bool { return strings.Count(server.Log(), unusable) > said })
	if now := presented(t, addr, conf); !bytes.Equal(now, former) {
		t.Error("half of a certificate is in use")
	}
	if err := errors.Join(os.WriteFile(at("server.pem"), next, 0o600), os.WriteFile(at("ca.pem"), append(ca, more...), 0o600)); err != nil {
		t.Fatal(err)
	}
	await(t, time.Minute, "the new certificate is presented", func() bool { return !bytes.Equal(presented(t, addr, conf), former) })
	other := clientTLS(t, added, "client")
	other.RootCAs = conf.RootCAs
	h := newHolder(t, "https://"+addr, "other/"+name, other, new(atomic.Int64), new(atomic.Int64))
	await(t, time.Minute, "a client of the new authority gets in", func() bool {
		return h.once(t.Context()) == nil
	})
}

// clientTLS returns the configuration of a client with a certificate in a folder of certs init.
func clientTLS(t *testing.T, dir, name string) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "localhost"}
}

// presented returns the certificate that the server presents to a new connection.
func presented(t *testing.T, addr string, conf *tls.Config) []byte {
	t.Helper()
	conn, err := (&tls.Dialer{Config: conf}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	secure, ok := conn.(*tls.Conn)
	if !ok {
		t.Fatalf("%T", conn)
	}
	return secure.ConnectionState().PeerCertificates[0].Raw
}
