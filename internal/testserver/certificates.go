//go:build unix

package testserver

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-io/holdfast/internal/certs"
	"github.com/holdfast-io/holdfast/internal/launch"
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
