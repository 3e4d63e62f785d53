// Package certs makes certificates for tests, for measurements and for a first cluster: an
// authority, and certificates of servers and clients that it signs.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Authority signs certificates. Its methods are safe for concurrent use.
type Authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	life time.Duration
}

// New creates an authority with a new key. Its certificate, and those that it signs, are valid from
// one hour ago, so that hosts with different clocks can use them, until life from now.
//
// Errors: those of the system's source of random numbers.
func New(name string, life time.Duration) (*Authority, error) {
	a := &Authority{life: life}
	var err error
	a.key, a.cert, err = a.sign(&x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		Subject: pkix.Name{CommonName: name},
	})
	return a, err
}

// PEM returns the certificate of the authority.
func (a *Authority) PEM() []byte { return encode("CERTIFICATE", a.cert.Raw) }

// Pair is a certificate and its private key, in PEM.
type Pair struct{ Cert, Key []byte }

// Issue creates a key and signs a certificate for it. name is the common name, which may be empty;
// hosts are the names and IP addresses of a server. A client and a server can use the certificate:
// a server such as etcd also connects to itself.
//
// Errors: those of the system's source of random numbers.
func (a *Authority) Issue(name string, hosts ...string) (Pair, error) {
	template := &x509.Certificate{
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		Subject:     pkix.Name{CommonName: name},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	key, cert, err := a.sign(template)
	if err != nil {
		return Pair{}, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("certs: key of %q: %w", name, err)
	}
	return Pair{encode("CERTIFICATE", cert.Raw), encode("PRIVATE KEY", der)}, nil
}

// sign signs a certificate with a new key. The first one, that of the authority, signs itself.
func (a *Authority) sign(template *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate, error) {
	name := template.Subject.CommonName
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("certs: key of %q: %w", name, err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, nil, fmt.Errorf("certs: serial number for %q: %w", name, err)
	}
	now := time.Now()
	template.NotBefore, template.NotAfter = now.Add(-time.Hour), now.Add(a.life)
	template.Subject.Organization = []string{"Holdfast"}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, nil, fmt.Errorf("certs: certificate for %q: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("certs: certificate for %q: %w", name, err)
	}
	return key, cert, nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// Files are the paths of PEM files.
type Files struct {
	CA, ServerCert, ServerKey, ClientCert, ClientKey string
}

// Loopback writes the files for a server on the loopback and for a client into a folder, with an
// authority of their own, whose key is not kept. They are valid for a
// day. Only the owner can read them.
//
// Errors: those of the file system, and of the system's source of random numbers.
func Loopback(dir string) (Files, error) {
	at := func(name string) string { return filepath.Join(dir, name) }
	f := Files{
		CA: at("ca.pem"), ServerCert: at("server.pem"), ServerKey: at("server.key"),
		ClientCert: at("client.pem"), ClientKey: at("client.key"),
	}
	a, err := New("loopback", 24*time.Hour)
	if err != nil {
		return f, err
	}
	server, err := a.Issue("server", "127.0.0.1", "localhost")
	if err != nil {
		return f, err
	}
	client, err := a.Issue("", "127.0.0.1", "localhost")
	if err != nil {
		return f, err
	}
	for path, text := range map[string][]byte{
		f.CA: a.PEM(), f.ServerCert: server.Cert, f.ServerKey: server.Key, f.ClientCert: client.Cert, f.ClientKey: client.Key,
	} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return f, fmt.Errorf("certs: %w", err)
		}
	}
	return f, nil
}
