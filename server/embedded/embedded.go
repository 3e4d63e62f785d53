package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
)

const (
	// MinTTL is the shortest lease that this etcd supports.
	MinTTL = time.Second
	// DefaultName is the default of Config.Name.
	DefaultName = "holdfast"
	// DefaultQuota is the default of Config.Quota.
	DefaultQuota = 2 << 30

	aloneTick, aloneElection     = 10, 100 // milliseconds
	clusterTick, clusterElection = 50, 500
	compactEvery                 = "1m"
	tenth                        = 10 // of the quota: a start defragments if it frees this much
	dirMode                      = 0o700
	etcdDir                      = "etcd" // in the data folder
	// mostLearners is how many nodes may join at the same time.
	mostLearners = 8
	// longestSocket is a length that fits into the address of a Unix socket on every system.
	longestSocket = 100
)

// Etcd is a node. It runs, or waits to be admitted to a cluster. Its methods are safe for
// concurrent use.
type Etcd struct {
	cfg    Config
	lock   *os.File
	socket string   // folder to remove in Close; may be empty
	peers  *peerNet // nil without a list
	raft   atomic.Pointer[http.Handler]

	mu     sync.Mutex
	rec    *record // replaced as a whole; nil if the folder is empty
	state  string
	why    string // what the node waits for
	node   *embed.Etcd
	client *clientv3.Client
	keys   *keyspace
	down   map[string]bool // members that did not answer recently, by name

	joining sync.Mutex // held while joining a cluster, or writing the decision to form one

	stop   context.CancelFunc
	ready  chan struct{} // closed when the node serves
	ended  chan struct{} // closed when run has returned
	err    error         // of run; read only after ended is closed
	errs   chan error
	once   sync.Once
	closed chan struct{}
}

// Open starts a node. It returns while the node waits for its cluster: see Ready, Err and
// Status.
//
// Errors: ErrInvalid, before anything is created; a data folder that is in use or belongs to
// another user; ErrRefused if the folder is not that of the node in cfg; an address that is in
// use.
func Open(cfg Config) (*Etcd, error) {
	e, run, err := open(cfg)
	if err != nil {
		return nil, err
	}
	go run()
	return e, nil
}

// open prepares a node. The function that it returns runs the node until Close.
func open(cfg Config) (*Etcd, func(), error) {
	if err := cfg.complete(); err != nil {
		return nil, nil, err
	}
	if err := makeDir(cfg.DataDir); err != nil {
		return nil, nil, fmt.Errorf("embedded: data folder: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	e := &Etcd{
		cfg: cfg, stop: stop, ready: make(chan struct{}), ended: make(chan struct{}),
		errs: make(chan error, 1), closed: make(chan struct{}),
	}
	var err error
	if e.lock, err = lockDir(cfg.DataDir); err != nil {
		stop()
		return nil, nil, fmt.Errorf("embedded: data folder %s: %w", cfg.DataDir, err)
	}
	err = e.check()
	again := e.rec != nil // now: Init may make a record before the node runs
	if err == nil && len(cfg.Cluster) > 0 {
		e.peers, err = listenPeers(cfg, http.HandlerFunc(e.servePeer))
	}
	if err != nil {
		close(e.ended)
		return nil, nil, errors.Join(err, e.Close())
	}
	return e, func() {
		defer close(e.ended)
		if e.err = e.run(ctx, again); e.err != nil {
			e.errs <- e.err
		}
	}, nil
}

// Start calls Open and waits until the node serves: in a cluster, until it was admitted and
// enough nodes are up to elect a leader. ctx bounds the start only.
//
// Errors: those of Open; what Err reports; ctx's cause.
func Start(ctx context.Context, cfg Config) (*Etcd, error) {
	if ctx == nil {
		return nil, invalid("ctx", "nil", "a context")
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	e, err := Open(cfg)
	if err != nil {
		return nil, err
	}
	select {
	case <-e.ready:
		return e, nil
	case <-e.ended:
		return nil, errors.Join(e.err, e.Close())
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("embedded: start: %w: %s", context.Cause(ctx), e.Waiting()), e.Close())
	}
}

// Ready is closed when the node serves for the first time.
func (e *Etcd) Ready() <-chan struct{} { return e.ready }

func (e *Etcd) log() *slog.Logger { return e.cfg.Logger }

// say records what the node waits for, and logs it if it has changed.
func (e *Etcd) say(why string) {
	e.mu.Lock()
	old := e.why
	e.why = why
	e.mu.Unlock()
	switch {
	case why == old:
	case why == "" && e.peers != nil:
		e.log().Warn("the node serves", slog.String("node", e.cfg.Name))
	case why != "":
		e.log().Warn("the node does not serve yet", slog.String("node", e.cfg.Name), slog.String("why", why))
	}
}

func (e *Etcd) recorded() *record {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rec
}

// keptAtStart is how many of the changes before its start a node keeps.
const keptAtStart = 10_000

// forget drops old history. The timer of etcd's own compaction begins again with each start: a
// node that never runs for that long would keep its whole history.
func (e *Etcd) forget(ctx context.Context) {
	if rev := e.node.Server.KV().Rev(); rev > keptAtStart {
		// It fails if that history is dropped already.
		_, _ = e.client.Compact(ctx, rev-keptAtStart)
	}
}

// Client returns a client that calls the node directly, or nil before Ready. Close closes it.
func (e *Etcd) Client() *clientv3.Client {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.client
}

// Err receives the error that ended the node. Close closes it.
func (e *Etcd) Err() <-chan error { return e.errs }

// Close ends the node and waits until it has ended. Every change that was answered is on the
// disk. A second Close waits as well.
func (e *Etcd) Close() error {
	var err error
	e.once.Do(func() {
		defer close(e.closed)
		e.stop()
		<-e.ended
		close(e.errs)
		if e.keys != nil {
			e.keys.close()
		}
		if e.client != nil {
			_ = e.client.Close() // its error only says that its context ended
		}
		if e.node != nil {
			e.node.Close()
		}
		if e.peers != nil {
			err = e.peers.close()
		}
		if e.socket != "" {
			err = errors.Join(err, os.RemoveAll(e.socket))
		}
		err = errors.Join(err, e.lock.Close())
	})
	<-e.closed
	if err != nil {
		return fmt.Errorf("embedded: close: %w", err)
	}
	return nil
}

// config returns the part of the configuration that every start of etcd shares.
func (e *Etcd) config() (*embed.Config, error) {
	ec := embed.NewConfig()
	ec.Name, ec.Dir = e.cfg.Name, filepath.Join(e.cfg.DataDir, etcdDir)
	ec.ZapLoggerBuilder = embed.NewZapLoggerBuilder(bridge(e.cfg.Logger))
	ec.AutoCompactionMode, ec.AutoCompactionRetention = embed.CompactorModePeriodic, compactEvery
	ec.QuotaBackendBytes = e.cfg.Quota
	// Space that was in use at a peak counts for the quota until the file is defragmented.
	ec.BootstrapDefragThresholdMegabytes = uint(max(1, e.cfg.Quota/tenth>>20))
	ec.TickMs, ec.ElectionMs = clusterTick, clusterElection
	ec.MaxLearners = mostLearners
	ec.ListenClientUrls = []url.URL{}
	// A node that has started advertises an address. This is how etcd itself refuses a second
	// start of the node with an empty folder.
	ec.AdvertiseClientUrls = []url.URL{{Scheme: "unix", Host: "holdfast"}}
	for _, raw := range e.cfg.ListenClients {
		u, err := url.Parse(raw)
		if err != nil {
			return nil, fmt.Errorf("embedded: address for clients: %w", err)
		}
		ec.ListenClientUrls = append(ec.ListenClientUrls, *u)
		ec.AdvertiseClientUrls = ec.ListenClientUrls
	}
	if e.peers == nil {
		ec.TickMs, ec.ElectionMs = aloneTick, aloneElection
	} else {
		ec.PeerTLSInfo = e.peers.info
	}
	own, err := url.Parse(e.cfg.peerURL())
	if err != nil {
		return nil, fmt.Errorf("embedded: peer URL: %w", err)
	}
	ec.AdvertisePeerUrls = []url.URL{*own}
	return ec, e.hide(ec)
}

// hide makes etcd listen for its peers where no other program reaches it. The peers of a
// cluster connect to a port of this package, see listenPeers.
func (e *Etcd) hide(ec *embed.Config) error {
	dir := e.cfg.DataDir
	if len(dir) > longestSocket-len("/peer.sock") {
		if e.socket == "" {
			var err error
			if e.socket, err = os.MkdirTemp("", "holdfast-"); err != nil {
				return fmt.Errorf("embedded: folder for the socket: %w", err)
			}
		}
		dir = e.socket
	}
	// etcd takes the whole path of the socket from the host of the URL. With an empty host it
	// would listen where every user of the machine reaches it.
	ec.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: filepath.Join(dir, "peer.sock")}}
	return nil
}
