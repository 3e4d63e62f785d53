// Package certs makes certificates for tests, for measurements and for a first server: an authority,
// and certificates of servers and clients that it signs.
package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"time"
)

const pemCert, pemKey = "CERTIFICATE", "PRIVATE KEY"

// Authority signs certificates. Its methods are safe for concurrent use.
type Authority struct {
	key  crypto.Signer
	cert *x509.Certificate
	life time.Duration
}

// Use is what a certificate can be used for.
type Use int

const (
	// Server is for a server only.
	Server Use = iota
	// Client is for a client only. A client cannot pose as a server.
	Client
	// Node is for both ends of a connection, as etcd needs it: it also connects to itself.
	Node
)

// New creates an authority with a new key. Its certificate, and those that it signs, are valid from
// one hour ago, so that hosts with different clocks can use them, until life from now.
//
// Errors: those of the system's source of random numbers.
func New(name string, life time.Duration) (*Authority, error) {
	a := &Authority{life: life}
	var err error
	a.key, a.cert, err = a.sign(&x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		Subject: pkix.Name{CommonName: name},
	})
	return a, err
}

// Parse reads an authority from PEM: its key, and certificates, of which one is that of the key. The
// certificates that it signs are valid for life, as those of New.
//
// Errors: the text is not that of an authority with its key.
func Parse(text []byte, life time.Duration) (*Authority, error) {
	a := &Authority{life: life}
	var known []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case pemCert:
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("certs: a certificate: %w", err)
			}
			known = append(known, cert)
		case pemKey:
			key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			signer, ok := key.(crypto.Signer)
			if err != nil || !ok || a.key != nil {
				return nil, errors.New("certs: must have one private key, which signs") // the error may quote the key
			}
			a.key = signer
		}
	}
	for _, cert := range known {
		if a.key != nil && cert.IsCA && isKeyOf(a.key, cert) {
			a.cert = cert
			return a, nil
		}
	}
	return nil, errors.New("certs: must have an authority's certificate and its private key in PEM")
}

func isKeyOf(key crypto.Signer, cert *x509.Certificate) bool {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(cert.PublicKey)
}

// PEM returns the certificate of the authority.
func (a *Authority) PEM() []byte { return encode(pemCert, a.cert.Raw) }

func (a *Authority) keyPEM() ([]byte, error) { return encodeKey(a.key, a.cert.Subject.CommonName) }

// Pair is a certificate and its private key, in PEM.
type Pair struct{ Cert, Key []byte }

// Issue creates a key and signs a certificate for it. name is the common name, which may be empty;
// hosts are the names and IP addresses of a server, or the names of a client.
//
// Errors: those of the system's source of random numbers.
func (a *Authority) Issue(use Use, name string, hosts ...string) (Pair, error) {
	template := &x509.Certificate{KeyUsage: x509.KeyUsageDigitalSignature, Subject: pkix.Name{CommonName: name}}
	if use != Client {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if use != Server {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
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
	der, err := encodeKey(key, name)
	return Pair{encode(pemCert, cert.Raw), der}, err
}

// sign signs a certificate with a new key. The first one, that of the authority, signs itself.
func (a *Authority) sign(template *x509.Certificate) (crypto.Signer, *x509.Certificate, error) {
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
	} else if parent.NotAfter.Before(template.NotAfter) {
		template.NotAfter = parent.NotAfter
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

func encodeKey(key crypto.Signer, name string) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("certs: key of %q: %w", name, err)
	}
	return encode(pemKey, der), nil
}

// Files are the paths of PEM files.
type Files struct {
	CA, ServerCert, ServerKey, ClientCert, ClientKey string
}

// Loopback writes the files for a server on the loopback and for a client into a folder, with an
// authority of their own, whose key is not kept. Both certificates are for both ends, because a
// server such as etcd also connects to itself. They are valid for a day. Only the owner can read
// the files.
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
	server, err := a.Issue(Node, "server", "127.0.0.1", "localhost")
	if err != nil {
		return f, err
	}
	client, err := a.Issue(Node, "", "127.0.0.1", "localhost")
	if err != nil {
		return f, err
	}
	return f, write(map[string][]byte{
		f.CA: a.PEM(), f.ServerCert: server.Cert, f.ServerKey: server.Key, f.ClientCert: client.Cert, f.ClientKey: client.Key,
	})
}
