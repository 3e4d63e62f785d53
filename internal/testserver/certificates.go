//go:build unix

package testserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/launch"
)

// Certificates are PEM files: an authority that the test created, a server's certificate for
// the loopback, and a client's.
type Certificates struct {
	CA, ServerCert, ServerKey, ClientCert, ClientKey string
}

// NewCertificates creates new ones. Those of one call do not trust another's.
func NewCertificates(tb testing.TB) *Certificates {
	tb.Helper()
	dir := Dir(tb)
	at := func(name string) string { return filepath.Join(dir, name) }
	c := &Certificates{
		CA: at("ca.pem"), ServerCert: at("server.pem"), ServerKey: at("server.key"),
		ClientCert: at("client.pem"), ClientKey: at("client.key"),
	}
	ca := &issuer{tb: tb}
	ca.key, ca.cert = ca.issue(&x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, "test authority")
	ca.write(c.CA, "CERTIFICATE", ca.cert.Raw)
	leaf := func(name, certFile, keyFile string) {
		key, cert := ca.issue(&x509.Certificate{
			// etcd's own gateway is a client with the server's certificate.
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			KeyUsage:    x509.KeyUsageDigitalSignature,
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		}, name)
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			tb.Fatalf("testserver: key of %s: %v", name, err)
		}
		ca.write(certFile, "CERTIFICATE", cert.Raw)
		ca.write(keyFile, "PRIVATE KEY", der)
	}
	leaf("server", c.ServerCert, c.ServerKey)
	leaf("", c.ClientCert, c.ClientKey)
	return c
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
	if err != nil {
		tb.Fatalf("testserver: authority: %v", err)
	}
	cert, err := tls.LoadX509KeyPair(c.ClientCert, c.ClientKey)
	if err != nil {
		tb.Fatalf("testserver: certificate of the client: %v", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{cert}}
}

// issuer signs certificates; the first one signs itself.
type issuer struct {
	tb   testing.TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func (i *issuer) issue(template *x509.Certificate, name string) (*ecdsa.PrivateKey, *x509.Certificate) {
	i.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.tb.Fatalf("testserver: key: %v", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		i.tb.Fatalf("testserver: serial: %v", err)
	}
	template.SerialNumber = serial
	template.Subject = pkix.Name{CommonName: name, Organization: []string{"holdfast tests"}}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	parent, signer := i.cert, i.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		i.tb.Fatalf("testserver: certificate: %v", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		i.tb.Fatalf("testserver: certificate: %v", err)
	}
	return key, cert
}

func (i *issuer) write(path, kind string, der []byte) {
	i.tb.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		i.tb.Fatalf("testserver: %v", err)
	}
}
