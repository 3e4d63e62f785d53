package embedded

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
)

// Peer is a node of a cluster.
type Peer struct {
	// Name of the node, unique in the cluster. Required.
	Name string
	// URL at which the other nodes reach it: "https://10.0.0.1:2380". Plain http is only for
	// nodes on the loopback of one host, which add TLS by themselves: see Config.LocalCA.
	// Required.
	URL string
}

// TLS is how the nodes of a cluster authenticate each other: files in PEM. Cert and Key are read for
// each new connection, so that they can be replaced. CA is read at the start.
type TLS struct {
	// Cert and Key of this node, for both ends of a connection: the certificate must be for a
	// server and for a client (extended key usage), and name the host of the node's URL.
	// Required.
	Cert, Key string
	// CA that issued the certificates of all nodes. Required.
	CA string
}

// Config configures the node.
type Config struct {
	// DataDir is the folder of all data. It is created if it does not exist. Required.
	DataDir string
	// Name of this node; one of the names in Cluster, if that is set. Default:
	// DefaultName. Optional.
	Name string
	// Cluster lists the nodes of the cluster, this one included. Empty: the node is a cluster
	// of one, and no other node can join it. Optional.
	Cluster []Peer
	// ListenPeers is the address on which this node listens for the others, "0.0.0.0:2380", if
	// it is not the host and port of its own URL. Optional.
	ListenPeers string
	// PeerTLS is required unless every URL in Cluster is http on the loopback. Optional.
	PeerTLS *TLS
	// LocalCA is a file with the certificate authority of the nodes that one user runs on one
	// host. Their URLs are http on the loopback, and mean TLS with certificates of that
	// authority: a port on the loopback is open to every user of the host. The file is created
	// if it does not exist, readable by its owner only. Required if the URLs are http.
	LocalCA string
	// ListenClients are URLs for other programs, such as etcdctl: "http://127.0.0.1:2379",
	// "unix:///run/etcd.sock". There is no authentication. Default: none. Optional.
	ListenClients []string
	// Quota is the largest size of the data, in bytes. Default: DefaultQuota. Optional.
	Quota int64
	// Logger receives the errors of etcd, and what the node waits for. Default: none. Optional.
	Logger *slog.Logger
}

// complete checks the configuration and fills in the defaults.
func (c *Config) complete() error {
	if c.DataDir == "" {
		return invalid("data-dir", c.DataDir, "the path of a folder")
	}
	var err error
	if c.DataDir, err = filepath.Abs(c.DataDir); err != nil {
		return fmt.Errorf("embedded: data folder: %w", err)
	}
	if c.Name == "" {
		c.Name = DefaultName
	}
	if c.Quota == 0 {
		c.Quota = DefaultQuota
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if !isName(c.Name) {
		return invalid("name", c.Name, "1 to 64 bytes without comma, equals sign, slash, space and control characters")
	}
	if c.Quota < 0 {
		return invalid("quota", c.Quota, "0 bytes or more")
	}
	return c.checkCluster()
}

// longestName is what fits into a row of a table.
const longestName = 64

// isName reports whether s can be a name in etcd's list of the nodes and a segment of a path.
func isName(s string) bool {
	return s != "" && len(s) <= longestName && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r == 0x7f || strings.ContainsRune(",=/", r)
	})
}

// invalid returns the error of an invalid configuration. Fields are named like the flags of the
// server's command.
func invalid(field string, value any, bound string) error {
	return fmt.Errorf("embedded: %w", &backend.InvalidError{Field: field, Value: fmt.Sprintf("%#v", value), Bound: bound})
}

func (c *Config) checkCluster() error {
	if len(c.Cluster) == 0 {
		return c.checkAlone()
	}
	if c.own() == nil {
		return invalid("name", c.Name, "one of those in the cluster")
	}
	c.Cluster = slices.Clone(c.Cluster)
	seen := make(map[string]bool)
	for i, p := range c.Cluster {
		u, err := checkURL(p)
		if err != nil {
			return err
		}
		if seen[p.Name] || seen[p.URL] || !isName(p.Name) {
			return invalid("cluster", p.Name+"="+p.URL, "the only one with its name, which is 1 to 64 bytes without comma, equals sign, slash and space, and with its URL")
		}
		seen[p.Name], seen[p.URL] = true, true
		if err := c.checkTLS(p, u); err != nil {
			return err
		}
		// A URL with http means TLS on the wire: see LocalCA.
		c.Cluster[i].URL = "https://" + u.Host
	}
	return c.checkListenPeers()
}

func checkURL(p Peer) (*url.URL, error) {
	u, err := url.Parse(p.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Port() == "" || u.Scheme+"://"+u.Host != p.URL {
		return nil, invalid("cluster", p.Name, "given with http://host:port or https://host:port, and no more") // the URL may have a password
	}
	return u, nil
}

// checkTLS refuses nodes that would obey any client that reaches their port, and certificates
// that a node would not use.
func (c *Config) checkTLS(p Peer, u *url.URL) error {
	t := c.PeerTLS
	switch {
	case t == nil && u.Scheme == "https":
		return invalid("peer-cert", "", "given together with peer-key and peer-ca, as "+p.URL+" is https")
	case t == nil && !isLoopback(u.Hostname()):
		return invalid("peer-cert", "", "given together with peer-key and peer-ca, and the cluster with https: "+p.URL+" is beyond this host's loopback, where whoever reaches a node's peer port could change every lock")
	case t == nil && c.LocalCA == "":
		return invalid("local-ca", "", "the path of a file, as "+p.URL+" is http")
	case t == nil:
		return nil
	case t.Cert == "" || t.Key == "" || t.CA == "":
		return invalid("peer-cert", t.Cert, "given together with peer-key and peer-ca")
	case u.Scheme != "https":
		return invalid("cluster", p.URL, "https, as peer-cert is given")
	}
	return nil
}

func (c *Config) checkListenPeers() error {
	if c.ListenPeers == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(c.ListenPeers)
	if err != nil {
		return invalid("listen-peers", c.ListenPeers, "HOST:PORT")
	}
	if c.PeerTLS == nil && !isLoopback(host) {
		return invalid("listen-peers", c.ListenPeers, "on the loopback unless peer-cert, peer-key and peer-ca are given")
	}
	return nil
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// checkAlone refuses settings that need a cluster.
func (c *Config) checkAlone() error {
	if c.PeerTLS != nil {
		return invalid("peer-cert", c.PeerTLS.Cert, "given with a cluster only")
	}
	if c.ListenPeers != "" {
		return invalid("listen-peers", c.ListenPeers, "given with a cluster only")
	}
	return nil
}

// own returns this node's entry in the list.
func (c *Config) own() *Peer {
	i := slices.IndexFunc(c.Cluster, func(p Peer) bool { return p.Name == c.Name })
	if i < 0 {
		return nil
	}
	return &c.Cluster[i]
}

// aloneURL is the peer URL of a node without a list of nodes. Nothing listens there. It is
// written into the data, so it must not depend on the folder.
const aloneURL = "unix://alone"

// peerURL returns the URL by which the cluster knows this node.
func (c *Config) peerURL() string {
	if p := c.own(); p != nil {
		return p.URL
	}
	return aloneURL
}

func (p Peer) host() string {
	u, err := url.Parse(p.URL)
	if err != nil {
		return "" // it was checked before
	}
	return u.Hostname()
}
