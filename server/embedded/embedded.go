package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/holdfast-io/holdfast/backend"
)

const (
	// MinTTL is the shortest lease that this etcd keeps.
	MinTTL = time.Second
	// DefaultName is for Config.Name.
	DefaultName = "holdfast"
	// DefaultQuota is for Config.Quota.
	DefaultQuota = 2 << 30

	aloneTick, aloneElection     = 10, 100 // milliseconds
	clusterTick, clusterElection = 50, 500
	compactEvery                 = "1m"
	dirMode                      = 0o700
	etcdDir                      = "etcd" // in the data folder
	// longestSocket is what fits into the address of a Unix socket everywhere.
	longestSocket = 100
)

// Peer is a node of a cluster.
type Peer struct {
	// Name of the node, unique in the cluster. Required.
	Name string
	// URL where its peers reach it: "https://10.0.0.1:2380". Required.
	URL string
}

// TLS is how the nodes of a cluster know each other: files in PEM. They are read again for
// each new connection, so that they can be replaced.
type TLS struct {
	// Cert and Key of this node, for both ends of a connection: the certificate is a server's
	// and a client's (extended key usage), and has the host of the node's URL. Required.
	Cert, Key string
	// CA that the certificates of all nodes are from. Required.
	CA string
}

// Config says how to run the node.
type Config struct {
	// DataDir is where everything is kept. It is made if it is not there. Required.
	DataDir string
	// Name of this node; one of the names in Cluster, if that is given. Default:
	// DefaultName. Optional.
	Name string
	// Cluster is all the nodes, this one included. Empty: the node is alone. Optional.
	Cluster []Peer
	// Token tells clusters apart that could reach each other by mistake. Optional.
	Token string
	// ListenPeers is where this node listens for the others, "0.0.0.0:2380", if that is
	// not the host and port of its own URL. Optional.
	ListenPeers string
	// PeerTLS is required where the URLs in Cluster are https, as then all must be. Optional.
	PeerTLS *TLS
	// ListenClients are URLs for other programs, as etcdctl: "http://127.0.0.1:2379",
	// "unix:///run/etcd.sock". There is no authentication. Default: none. Optional.
	ListenClients []string
	// Quota is how large the data may grow, in bytes. Default: DefaultQuota. Optional.
	Quota int64
	// Logger gets the errors of etcd. Default: none. Optional.
	Logger *slog.Logger
}

// Etcd is a node that runs. Its methods may be called at once from many goroutines.
type Etcd struct {
	node   *embed.Etcd
	client *clientv3.Client
	lock   *os.File
	socket string // folder to remove at the end; may be empty
	once   sync.Once
	closed chan struct{}
}

// Start runs a node and waits until it is ready: in a cluster, until enough nodes are
// there to elect a leader. ctx bounds the start only.
//
// Errors: ErrInvalid, before anything is made; a data folder that is in use; what etcd
// says; ctx's cause.
func Start(ctx context.Context, cfg Config) (*Etcd, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	if err := makeDir(cfg.DataDir); err != nil {
		return nil, fmt.Errorf("embedded: data folder: %w", err)
	}
	e := &Etcd{closed: make(chan struct{})}
	var err error
	if e.lock, err = lockDir(cfg.DataDir); err != nil {
		return nil, fmt.Errorf("embedded: data folder %s: %w", cfg.DataDir, err)
	}
	if err := e.start(ctx, cfg); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// makeDir makes the folder, or closes one that is there to everybody else: but never one
// that belongs to something else, such as /tmp.
func makeDir(dir string) error {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return err //nolint:wrapcheck // it names the folder
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err //nolint:wrapcheck // it names the folder
	}
	known := 0 // of a start that did not get far, or of a new file system
	ours := false
	for _, e := range entries {
		switch e.Name() {
		case etcdDir:
			ours = true
		case "lock", "peer.sock", "lost+found":
			known++
		}
	}
	ours = ours || known == len(entries)
	if !ours {
		return fmt.Errorf("%s: must be empty, or have the data of a node in it", dir)
	}
	return os.Chmod(dir, dirMode) //nolint:wrapcheck // it names the folder
}

func (e *Etcd) start(ctx context.Context, cfg Config) error {
	ec, err := e.config(cfg)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if e.node, err = embed.StartEtcd(ec); err != nil {
		return fmt.Errorf("embedded: start: %w", err)
	}
	select {
	case <-e.node.Server.ReadyNotify():
	case <-e.node.Server.StopNotify():
		return errors.New("embedded: the node stopped while it started; the log says why")
	case err := <-e.node.Err():
		return fmt.Errorf("embedded: start: %w", err)
	case <-ctx.Done():
		return fmt.Errorf("embedded: start: %w", context.Cause(ctx))
	}
	e.client = v3client.New(e.node.Server)
	e.client.Watcher = watcher(e.node.Server, e.client)
	e.forget(ctx)
	return nil
}

// keptAtStart is how many changes of those before its start a node keeps.
const keptAtStart = 10_000

// forget drops old history. The clock for that begins anew with each start: a node that
// never is up for as long as that takes would keep all it ever did.
func (e *Etcd) forget(ctx context.Context) {
	if rev := e.node.Server.KV().Rev(); rev > keptAtStart {
		// It fails where that is forgotten already.
		_, _ = e.client.Compact(ctx, rev-keptAtStart)
	}
}

// Client gives a client that calls the node directly. Close closes it.
func (e *Etcd) Client() *clientv3.Client { return e.client }

// Err receives what ended the node, and is closed by Close.
func (e *Etcd) Err() <-chan error { return e.node.Err() }

// Reclaim makes room after the quota was reached: it drops all history, gives the
// space back to the file system, and takes the alarm back. The node answers nobody
// while it defragments. In a cluster, call it on each node.
//
// Errors: what etcd says.
func (e *Etcd) Reclaim(ctx context.Context) error {
	status, err := e.client.Status(ctx, "")
	if err != nil {
		return fmt.Errorf("embedded: status: %w", err)
	}
	// What is compacted already is no error: it is all the same.
	_, _ = e.client.Compact(ctx, status.Header.Revision, clientv3.WithCompactPhysical())
	if err := e.node.Server.Backend().Defrag(); err != nil {
		return fmt.Errorf("embedded: defragment: %w", err)
	}
	if _, err := e.client.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
		return fmt.Errorf("embedded: take the alarm back: %w", err)
	}
	return nil
}

// Close ends the node and waits until it has. What was answered is on the disk.
// Closing again waits as well.
func (e *Etcd) Close() error {
	var err error
	e.once.Do(func() {
		defer close(e.closed)
		if e.client != nil {
			_ = e.client.Close() // it says that its context ended
		}
		if e.node != nil {
			e.node.Close()
		}
		if e.socket != "" {
			err = os.RemoveAll(e.socket)
		}
		err = errors.Join(err, e.lock.Close())
	})
	<-e.closed
	if err != nil {
		return fmt.Errorf("embedded: close: %w", err)
	}
	return nil
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
		return invalid("name", c.Name, "without comma and equals sign")
	}
	if c.Quota < 0 {
		return invalid("quota", c.Quota, "0 bytes or more")
	}
	return c.checkCluster()
}

// isName reports whether etcd can take it into its list of the nodes.
func isName(s string) bool { return s != "" && !strings.ContainsAny(s, ",=") }

// invalid is what the configuration is refused with. Fields are called as the flags of the
// server's command are.
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
	if _, _, err := net.SplitHostPort(c.ListenPeers); c.ListenPeers != "" && err != nil {
		return invalid("listen-peers", c.ListenPeers, "HOST:PORT")
	}
	seen := make(map[string]bool)
	for _, p := range c.Cluster {
		u, err := url.Parse(p.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Port() == "" || u.Scheme+"://"+u.Host != p.URL {
			return invalid("cluster", p.Name, "given with http://host:port or https://host:port, and no more") // the URL may have a password
		}
		if seen[p.Name] || seen[p.URL] || !isName(p.Name) {
			return invalid("cluster", p.Name+"="+p.URL, "the only one with its name, which is without comma and equals sign, and with its URL")
		}
		seen[p.Name], seen[p.URL] = true, true
		if err := c.PeerTLS.check(p.URL, u.Scheme == "https"); err != nil {
			return err
		}
	}
	return nil
}

// checkAlone refuses what only a cluster has.
func (c *Config) checkAlone() error {
	if c.PeerTLS != nil {
		return invalid("peer-cert", c.PeerTLS.Cert, "given with a cluster only")
	}
	if c.ListenPeers != "" {
		return invalid("listen-peers", c.ListenPeers, "given with a cluster only")
	}
	return nil
}

// check refuses certificates that a node would not use, and the want of them.
func (t *TLS) check(node string, https bool) error {
	switch {
	case t == nil && https:
		return invalid("peer-cert", "", "given together with peer-key and peer-ca, as "+node+" is https")
	case t == nil:
		return nil
	case t.Cert == "" || t.Key == "" || t.CA == "":
		return invalid("peer-cert", t.Cert, "given together with peer-key and peer-ca")
	case !https:
		return invalid("cluster", node, "https, as peer-cert is given")
	}
	return nil
}

func (c *Config) own() *Peer {
	i := slices.IndexFunc(c.Cluster, func(p Peer) bool { return p.Name == c.Name })
	if i < 0 {
		return nil
	}
	return &c.Cluster[i]
}

// config translates.
func (e *Etcd) config(cfg Config) (*embed.Config, error) {
	ec := embed.NewConfig()
	ec.Name, ec.Dir = cfg.Name, filepath.Join(cfg.DataDir, etcdDir)
	ec.ZapLoggerBuilder = embed.NewZapLoggerBuilder(bridge(cfg.Logger))
	ec.AutoCompactionMode, ec.AutoCompactionRetention = embed.CompactorModePeriodic, compactEvery
	ec.QuotaBackendBytes = cfg.Quota
	ec.TickMs, ec.ElectionMs = clusterTick, clusterElection
	ec.ListenClientUrls, ec.AdvertiseClientUrls = []url.URL{}, []url.URL{}
	for _, raw := range cfg.ListenClients {
		u, err := url.Parse(raw)
		if err != nil {
			return nil, fmt.Errorf("embedded: address for clients: %w", err)
		}
		ec.ListenClientUrls = append(ec.ListenClientUrls, *u)
		ec.AdvertiseClientUrls = append(ec.AdvertiseClientUrls, *u)
	}
	if cfg.Token != "" {
		ec.InitialClusterToken = cfg.Token
	}
	if len(cfg.Cluster) == 0 {
		return ec, e.alone(ec, cfg)
	}
	return ec, clustered(ec, cfg)
}

// alone gives the node a peer endpoint that nobody reaches.
func (e *Etcd) alone(ec *embed.Config, cfg Config) error {
	ec.TickMs, ec.ElectionMs = aloneTick, aloneElection
	dir := cfg.DataDir
	if len(dir) > longestSocket-len("/peer.sock") {
		var err error
		if dir, err = os.MkdirTemp("", "holdfast-"); err != nil {
			return fmt.Errorf("embedded: folder for the socket: %w", err)
		}
		e.socket = dir
	}
	// etcd takes the whole path of the socket from the host, and without one listens where
	// every user of the machine reaches it.
	ec.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: filepath.Join(dir, "peer.sock")}}
	// The advertised one is written into the data: it must not depend on the folder.
	ec.AdvertisePeerUrls = []url.URL{{Scheme: "unix", Host: "alone"}}
	ec.InitialCluster = cfg.Name + "=unix://alone"
	return nil
}

func clustered(ec *embed.Config, cfg Config) error {
	own, err := url.Parse(cfg.own().URL)
	if err != nil {
		return fmt.Errorf("embedded: URL of %q: %w", cfg.Name, err)
	}
	listen := *own
	if cfg.ListenPeers != "" {
		listen.Host = cfg.ListenPeers
	}
	ec.ListenPeerUrls, ec.AdvertisePeerUrls = []url.URL{listen}, []url.URL{*own}
	if cfg.PeerTLS != nil {
		ec.PeerTLSInfo = transport.TLSInfo{
			CertFile: cfg.PeerTLS.Cert, KeyFile: cfg.PeerTLS.Key, TrustedCAFile: cfg.PeerTLS.CA, ClientCertAuth: true,
		}
	}
	members := make([]string, len(cfg.Cluster))
	for i, p := range cfg.Cluster {
		members[i] = p.Name + "=" + p.URL
	}
	ec.InitialCluster = strings.Join(members, ",")
	return nil
}
