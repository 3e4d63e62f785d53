package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/client/pkg/v3/transport"

	"github.com/holdfast-io/holdfast/internal/certs"
	"github.com/holdfast-io/holdfast/internal/ownfile"
)

// The nodes of one host talk over the loopback, which every user of the host can reach, and
// raft obeys every peer that reaches it. So they authenticate each other by certificates there
// too. The authority is a file that only the user can read. Every node of the user issues
// itself a certificate from it when it starts.

// tlsInfo returns the files by which this node and its peers authenticate each other.
func (c *Config) tlsInfo() (transport.TLSInfo, error) {
	info := transport.TLSInfo{ClientCertAuth: true}
	if t := c.PeerTLS; t != nil {
		info.CertFile, info.KeyFile, info.TrustedCAFile = t.Cert, t.Key, t.CA
		return info, nil
	}
	authority, err := certs.Shared(c.LocalCA, "holdfast nodes of one host")
	if err != nil {
		return info, fmt.Errorf("embedded: authority of the nodes of this host: %w", err)
	}
	pair, err := authority.Issue(certs.Node, "holdfast node", "localhost", "127.0.0.1", "::1", c.own().host())
	if err != nil {
		return info, fmt.Errorf("embedded: certificate of this node: %w", err)
	}
	dir := filepath.Join(c.DataDir, "tls")
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return info, fmt.Errorf("embedded: %w", err)
	}
	info.CertFile, info.KeyFile, info.TrustedCAFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "ca.pem")
	err = errors.Join(
		ownfile.Replace(info.CertFile, pair.Cert), ownfile.Replace(info.KeyFile, pair.Key), ownfile.Replace(info.TrustedCAFile, authority.PEM()),
	)
	if err != nil {
		return info, fmt.Errorf("embedded: certificate of this node: %w", err)
	}
	return info, nil
}
