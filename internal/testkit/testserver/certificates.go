//go:build unix

package testserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-io/holdfast/internal/certs"
	"github.com/holdfast-io/holdfast/internal/testkit/launch"
)

// Certificates are PEM files: an authority that the test created, a server's certificate for
// the loopback, and a client's.
type Certificates struct{ certs.Files }

// NewCertificates creates new ones. Those of one call do not trust another's.
func NewCertificates(tb testing.TB) *Certificates {
	tb.Helper()
	files, err := certs.Loopback(Dir(tb))
	check(tb, err)
	return &Certificates{files}
}

// For lets a server that runs as the named user read them, where the test is root.
func (c *Certificates) For(tb testing.TB, name string) {
	tb.Helper()
	account, err := launch.Account(name)
	check(tb, err)
	for _, path := range []string{filepath.Dir(c.CA), c.CA, c.ServerCert, c.ServerKey} {
		check(tb, launch.Chown(path, account))
	}
}

// Client returns the TLS configuration of a client.
func (c *Certificates) Client(tb testing.TB) *tls.Config {
	tb.Helper()
	authority, err := os.ReadFile(c.CA)
	check(tb, err)
	cert, err := tls.LoadX509KeyPair(c.ClientCert, c.ClientKey)
	check(tb, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{cert}}
}

// Terminate listens with the server's certificate, and passes on to a server what arrives, as a proxy in
// front of it does. It returns the address, and ends with the test.
func (c *Certificates) Terminate(tb testing.TB, to string) string {
	tb.Helper()
	pair, err := tls.LoadX509KeyPair(c.ServerCert, c.ServerKey)
	check(tb, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}})
	check(tb, err)
	done := make(chan struct{})
	tb.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go relay(context.WithoutCancel(tb.Context()), in, to)
		}
	}()
	return l.Addr().String()
}

func relay(ctx context.Context, in net.Conn, to string) {
	defer func() { _ = in.Close() }()
	out, err := new(net.Dialer).DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	go func() {
		_, _ = io.Copy(out, in)
		_ = out.Close()
	}()
	_, _ = io.Copy(in, out)
}
