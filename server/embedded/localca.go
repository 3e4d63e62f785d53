package embedded

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
)

// The nodes of one host talk over the loopback, which every user of the host can reach, and
// raft obeys every peer that reaches it. So they authenticate each other by certificates there
// too. The authority is a file that only the user can read. Every node of the user issues
// itself a certificate from it when it starts.

const (
	pemCert, pemKey = "CERTIFICATE", "PRIVATE KEY"
	keyMode         = 0o600
)

// tlsInfo returns the files by which this node and its peers authenticate each other.
func (c *Config) tlsInfo() (transport.TLSInfo, error) {
	info := transport.TLSInfo{ClientCertAuth: true}
	if t := c.PeerTLS; t != nil {
		info.CertFile, info.KeyFile, info.TrustedCAFile = t.Cert, t.Key, t.CA
		return info, nil
	}
	cert, key, err := localCA(c.LocalCA)
	if err != nil {
		return info, fmt.Errorf("embedded: authority of the nodes of this host: %w", err)
	}
	dir := filepath.Join(c.DataDir, "tls")
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return info, fmt.Errorf("embedded: %w", err)
	}
	leaf, leafKey, err := issue(cert, key, c.own().host())
	if err != nil {
		return info, fmt.Errorf("embedded: certificate of this node: %w", err)
	}
	info.CertFile, info.KeyFile, info.TrustedCAFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "ca.pem")
	err = errors.Join(
		writeFile(info.CertFile, leaf), writeFile(info.KeyFile, leafKey),
		writeFile(info.TrustedCAFile, pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: cert.Raw})),
	)
	if err != nil {
		return info, fmt.Errorf("embedded: certificate of this node: %w", err)
	}
	return info, nil
}

// localCA reads the authority, and creates it if it does not exist. Nodes that start at the
// same moment agree on one.
func localCA(path string) (*x509.Certificate, ed25519.PrivateKey, error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		if err := makeCA(path); err != nil {
			return nil, nil, err
		}
	}
	if err := checkOwn(path); err != nil {
		return nil, nil, err
	}
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() || isOpen(info.Mode()) {
		return nil, nil, fmt.Errorf("%s: must be a file that only its owner can read (mode 0600)", path)
	}
	data, err := os.ReadFile(path) //nolint:gosec // the path is the operator's choice
	if err != nil {
		return nil, nil, err //nolint:wrapcheck // it names the file
	}
	certBlock, rest := pem.Decode(data)
	keyBlock, _ := pem.Decode(rest)
	if certBlock == nil || keyBlock == nil {
		return nil, nil, fmt.Errorf("%s: must have a certificate and a key", path)
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	key, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: the key: %w", path, err)
	}
	signer, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, nil, fmt.Errorf("%s: the key is not one that this program made", path)
	}
	return cert, signer, nil
}

// makeCA writes a new authority, unless another process has written one first.
func makeCA(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return err //nolint:wrapcheck // it names the folder
	}
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err //nolint:wrapcheck // it never fails
	}
	template := template("holdfast nodes of one host")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	cert, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	if err != nil {
		return err //nolint:wrapcheck // it says what of the certificate
	}
	data, err := encode(cert, key)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".peers-*") // mode 0600
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", f.Name(), err)
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err //nolint:wrapcheck // it names the files
	}
	return syncDir(filepath.Dir(path))
}

// issue returns a certificate for the loopback and host, and its key, in PEM.
func issue(ca *x509.Certificate, caKey ed25519.PrivateKey, host string) ([]byte, []byte, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err //nolint:wrapcheck // it never fails
	}
	template := template("holdfast node")
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.DNSNames = []string{"localhost"}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = append(template.IPAddresses, ip)
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, ca, public, caKey)
	if err != nil {
		return nil, nil, err //nolint:wrapcheck // it says what of the certificate
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err //nolint:wrapcheck // it says what of the key
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: cert}), pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

// template is valid at every time of the host's clock: the key is what is checked.
func template(name string) *x509.Certificate {
	const bits = 120
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), bits)) // it never fails
	return &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
	}
}

func encode(cert []byte, key ed25519.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what of the key
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: cert}), pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der})...), nil
}
