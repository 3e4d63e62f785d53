package certs_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"testing"

	"github.com/holdfast-io/holdfast/internal/certs"
)

// A server and a client with the files of one folder trust each other, and not those of another.
func TestLoopback(t *testing.T) {
	t.Parallel()
	ours, err := certs.Loopback(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	others, err := certs.Loopback(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server := config(t, ours.ServerCert, ours.ServerKey, ours.CA)
	if err := handshake(t, server, config(t, ours.ClientCert, ours.ClientKey, ours.CA)); err != nil {
		t.Errorf("a client of the same authority: %v", err)
	}
	if err := handshake(t, server, config(t, others.ClientCert, others.ClientKey, ours.CA)); err == nil {
		t.Error("the server trusts a client of another authority")
	}
	if err := handshake(t, server, config(t, ours.ClientCert, ours.ClientKey, others.CA)); err == nil {
		t.Error("the client trusts a server of another authority")
	}
	info, err := os.Stat(ours.ServerKey)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key has the mode %v, %v", info.Mode(), err)
	}
	if _, err := certs.Loopback(t.TempDir() + "/none"); err == nil {
		t.Error("a folder that does not exist is no error")
	}
}

func config(t *testing.T, cert, key, ca string) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		t.Fatal("no certificate of the authority")
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ServerName: "localhost",
		RootCAs: roots, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert,
	}
}

// handshake returns the error of either side.
func handshake(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	ended := make(chan error, 1)
	go func() {
		err := tls.Server(a, server).HandshakeContext(t.Context())
		a.Close()
		ended <- err
	}()
	err := tls.Client(b, client).HandshakeContext(t.Context())
	b.Close()
	if other := <-ended; err == nil {
		err = other
	}
	return err
}
