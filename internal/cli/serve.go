package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/open"
	"github.com/holdfast-io/holdfast/server"
	"github.com/holdfast-io/holdfast/server/embedded"
)

type serveOptions struct {
	listen      string
	dataDir     string
	name        string
	cluster     []string
	listenPeers string
	peerTLS     embedded.TLS
	quotaMiB    uint32
	drainDelay  time.Duration
	logFormat   string
	logLevel    string
	access      accessOptions
}

func (a *app) serveCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve locks over HTTP",
		Long: `Serve locks over HTTP: for curl, for programs in any language, and for the backend
holdfast://. The locks live on an etcd in the same process, one node, or three with
--cluster, unless --backend (not HOLDFAST_BACKEND) names another one. A restart keeps
leases and tokens.

SIGTERM or Ctrl-C stops the server: /readyz returns 503 for --drain-delay, waiting requests
get an answer, and leases stay.

--policy says who may do what: principals are identified by client certificates, tokens,
or, on a Unix socket, by their user. Without it every client may do everything, and the
server refuses to listen beyond this host without --anonymous, and without --tls-cert or
--insecure with --host.

The nodes of a cluster identify each other by certificates. Nodes on several
hosts need --peer-cert, --peer-key and --peer-ca. Nodes on the loopback of one host, with
http URLs, use a certificate authority of the user in the state folder.

A node with an empty folder and --cluster never forms a cluster by itself: it waits until
a node on the list admits it, or until "holdfast cluster init" is called once, on one node.

Each flag is also a variable, HOLDFAST_SERVE_DATA_DIR for --data-dir. A flag comes before
a variable.

Standard error has the log, and a JSON line for the audit about each break, refusal and act
on the cluster, which -q and --log-level do not silence.

The API is described at /openapi.json, the metrics are at /metrics, and / is a page
that shows the locks as they change.`,
		Example: `  holdfast serve
  holdfast serve --backend redis://127.0.0.1:6379
  holdfast serve --listen :7420 --policy policy.yaml --tls-cert cert.pem --tls-key key.pem --tls-client-ca ca.pem
  holdfast serve --name a --cluster a=http://127.0.0.1:2381,b=http://127.0.0.1:2382,c=http://127.0.0.1:2383
  holdfast cluster init --backend holdfast://127.0.0.1:7420

  curl -X POST localhost:7420/v1/locks/order:123 -d '{"ttl":"30s","wait":"10s"}'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := readVariables(cmd.Flags()); err != nil {
				return err
			}
			if err := a.setLog(o); err != nil {
				return err
			}
			return a.serve(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "127.0.0.1:7420", "address to listen on: HOST:PORT, or unix: and the path of a socket")
	f.StringVar(&o.dataDir, "data-dir", "", "folder of the embedded etcd (default: holdfast/serve in the user's state folder)")
	cmd.Annotations = map[string]string{ownSignals: "a signal drains the server"}
	f.StringVar(&o.name, "name", "", "name of this node in the cluster")
	f.StringSliceVar(&o.cluster, "cluster", nil, "all nodes of the cluster, including this one, as NAME=PEER-URL, separated by commas")
	f.StringVar(&o.listenPeers, "listen-peers", "", "address to listen on for the other nodes (default: the address in the node's URL)")
	f.StringVar(&o.peerTLS.Cert, "peer-cert", "", "certificate that this node presents to the other nodes; needed if the URLs in --cluster are https (PEM file)")
	f.StringVar(&o.peerTLS.Key, "peer-key", "", "key of --peer-cert (PEM file)")
	f.StringVar(&o.peerTLS.CA, "peer-ca", "", "certificate authority that issued the certificates of all nodes (PEM file)")
	f.Uint32Var(&o.quotaMiB, "quota-mib", embedded.DefaultQuota>>20, "size of the data at which new locks are refused, in MiB: see docs/operations.md")
	f.StringVar(&o.logFormat, "log-format", "text", "format of the log: text or json")
	f.StringVar(&o.logLevel, "log-level", "warn", "least level that is logged: debug, info, warn or error (-v: debug)")
	f.DurationVar(&o.drainDelay, "drain-delay", 0, "how long to keep serving after SIGTERM while /readyz returns 503, so that a load balancer stops sending clients")
	o.access.add(f)
	return cmd
}

// setLog makes the log of serve what its flags say.
func (a *app) setLog(o serveOptions) error {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	level, ok := levels[o.logLevel]
	if !ok {
		return usageError("log-level", "%q: must be debug, info, warn or error", o.logLevel)
	}
	if o.logFormat != "text" && o.logFormat != "json" {
		return usageError("log-format", "%q: must be text or json", o.logFormat)
	}
	a.logLevel, a.logJSON = level, o.logFormat == "json"
	return nil
}

func (a *app) serve(ctx context.Context, o serveOptions) error {
	ctx, stop := signal.NotifyContext(ctx, minded(syscall.SIGINT, syscall.SIGTERM)...)
	defer stop()
	surviveUnread()
	if err := o.check(); err != nil { // before anything is created on the disk
		return err
	}
	cfg := server.Config{Version: version(), Logger: a.logger(), DrainDelay: o.drainDelay}
	cfg.Audit = slog.New(slog.NewJSONHandler(a.stderr, nil)) // not the log: -q and --log-level would silence it
	endAccess, err := o.access.apply(&cfg, a.logger())
	if err != nil {
		return err
	}
	defer endAccess()
	st, err := a.store(ctx, o)
	if err != nil {
		return err
	}
	b := st.Backend
	cfg.Cluster = st.cluster()
	srv, err := server.New(b, cfg)
	if err != nil {
		return errors.Join(err, b.Close())
	}
	ln, err := listenOn(ctx, o.listen, o.access.policy != "")
	if err != nil {
		return errors.Join(&statusError{status: exitError1, err: fmt.Errorf("listen: %w", err)}, b.Close())
	}
	a.warn("serving %s on %s", b.Capabilities().Name, shownAddress(ln.Addr(), cfg.TLS != nil))
	a.notify(daemon.SdNotifyReady) // from here on connections wait in the listener
	err = a.serveUntil(ctx, srv, ln, st.ended())
	if err == nil {
		a.warn("stopped")
	}
	return errors.Join(err, b.Close())
}

// notify reports a state to the service manager that started this process with NOTIFY_SOCKET, as systemd does
// with Type=notify. A failure is a warning: systemd ends a service that does not become ready.
func (a *app) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		a.warn("the service manager was not told %s: %v", state, err)
	}
}

// serveUntil serves until ctx ends, or the node ends by itself, which is an error.
func (a *app) serveUntil(ctx context.Context, srv *server.Server, ln net.Listener, nodeEnded <-chan error) error {
	serving, end := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case err := <-nodeEnded:
			end(err)
		case <-serving.Done():
		}
		a.notify(daemon.SdNotifyStopping)
	})
	err := srv.Serve(serving, ln)
	if why := context.Cause(serving); ctx.Err() == nil && why != nil {
		err = errors.Join(why, err)
	}
	end(nil)
	watch.Wait()
	return err
}

// check refuses an address on which the server cannot, or must not, listen.
func (o *serveOptions) check() error {
	if path, isUnix := strings.CutPrefix(o.listen, unixPrefix); isUnix {
		if path == "" {
			return usageError("listen", "%q: must have the path of a socket", o.listen)
		}
		return o.access.check(false)
	}
	host, port, err := net.SplitHostPort(o.listen)
	if err != nil {
		return usageError("listen", "%q: must be HOST:PORT, or unix: and a path", o.listen)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return usageError("listen", "%q: the port must be 0 to 65535", o.listen)
	}
	return o.access.check(!onLoopback(host))
}

// onLoopback reports whether only this host can reach a listener on host. Of the names only
// "localhost" counts: any other may be that of an address beyond the loopback.
func onLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// shownAddress returns an address as clients name it.
func shownAddress(a net.Addr, secure bool) string {
	switch {
	case a.Network() == "unix":
		return unixPrefix + a.String()
	case secure:
		return "https://" + a.String()
	}
	return "http://" + a.String()
}

// store is where the locks are kept: the named backend, or a node in this process.
type store struct {
	backend.Backend
	node *embedded.Etcd // nil: a backend was named
}

func (s store) cluster() server.Cluster {
	if s.node == nil {
		return nil
	}
	return clusterNode{s.node}
}

// ended receives why the node ended by itself. It never receives if there is no node.
func (s store) ended() <-chan error {
	if s.node == nil {
		return nil
	}
	return s.node.Err()
}

func (a *app) store(ctx context.Context, o serveOptions) (store, error) {
	peers, err := peersOf(o.cluster)
	if err != nil {
		return store{}, err
	}
	if a.backend != "" {
		if len(peers) > 0 || o.dataDir != "" || o.name != "" || o.listenPeers != "" || o.peerTLS != (embedded.TLS{}) || o.quotaMiB != embedded.DefaultQuota>>20 {
			return store{}, usageError("backend", "cannot be combined with --data-dir, --name, --cluster, --listen-peers, --peer-cert, --peer-key, --peer-ca or --quota-mib, which configure the embedded etcd")
		}
		b, err := a.open(ctx)
		return store{Backend: b}, err
	}
	conf, err := a.nodeConfig(o, peers)
	if err != nil {
		return store{}, err
	}
	b, node, err := open.Node(conf)
	if err != nil {
		return store{}, err
	}
	if len(peers) == 0 { // it waits for no other node, so it is ready when a client can connect
		select {
		case <-node.Ready():
		case err := <-node.Err():
			return store{}, errors.Join(err, b.Close())
		case <-ctx.Done():
			return store{}, errors.Join(context.Cause(ctx), b.Close())
		}
	}
	return store{Backend: b, node: node}, nil
}

// nodeConfig returns the configuration of the node from the flags.
func (a *app) nodeConfig(o serveOptions, peers []embedded.Peer) (embedded.Config, error) {
	conf := embedded.Config{DataDir: o.dataDir, Name: o.name, Cluster: peers, ListenPeers: o.listenPeers, Quota: int64(o.quotaMiB) << 20, Logger: a.logger()}
	var err error
	if conf.DataDir == "" {
		if conf.DataDir, err = stateDir("serve"); err != nil {
			return conf, err
		}
	}
	if conf.DataDir, err = filepath.Abs(conf.DataDir); err != nil {
		return conf, fmt.Errorf("data-dir: %w", err)
	}
	if o.peerTLS != (embedded.TLS{}) {
		conf.PeerTLS = &o.peerTLS
	} else if len(peers) > 0 {
		if conf.LocalCA, err = stateDir("peers.pem"); err != nil {
			return conf, err
		}
	}
	return conf, nil
}

func peersOf(cluster []string) ([]embedded.Peer, error) {
	peers := make([]embedded.Peer, 0, len(cluster))
	for _, p := range cluster {
		name, url, ok := strings.Cut(p, "=")
		if !ok || name == "" || url == "" {
			return nil, usageError("cluster", "%q: must be NAME=PEER-URL", p)
		}
		peers = append(peers, embedded.Peer{Name: name, URL: url})
	}
	return peers, nil
}

// stateDir returns a folder of the user for data that has to survive.
func stateDir(name string) (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "holdfast", name), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find a folder for the data: %w", err)
	}
	return filepath.Join(home, ".local", "state", "holdfast", name), nil
}
