package embedded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
)

// The peer port belongs to this package. etcd itself listens on a socket in the data folder,
// which no other user may enter. Only a node with a certificate of the cluster's authority gets
// beyond the handshake. The port then serves what members need of etcd (raft, the leases that
// the leader keeps, the list of members), and the calls by which a node finds out whether it
// may start.

const (
	pathNode    = "/holdfast/node"
	pathJoin    = "/holdfast/join"
	pathPromote = "/holdfast/promote"
	pathMove    = "/holdfast/move"

	askTimeout = 2 * time.Second // for one question to one peer
	actTimeout = 7 * time.Second // for one change that a peer makes
	mostAnswer = 1 << 20
)

// The states of a node.
const (
	nodeWaiting      = "waiting"     // its folder is empty, and no cluster has admitted it
	nodeInitiating   = "initiating"  // it asks the others whether it may form a cluster
	nodeStarting     = "starting"    // its folder has data, and etcd does not run yet
	nodeRunning      = "running"     // etcd runs
	nodeUnreachable  = "unreachable" // it does not answer
	headerEtcdServer = "X-Server-From"
)

// nodeInfo is what a node reports of itself to its peers.
type nodeInfo struct {
	Name    string `json:"name"`
	URL     string `json:"url"`
	State   string `json:"state"`
	Cluster string `json:"cluster,omitempty"`
	Member  string `json:"member,omitempty"`
	// Leader is the ID of the leader that the node follows, or "" if it follows none.
	Leader string `json:"leader,omitempty"`
	// Members are those that the node knows, from its own data.
	Members []recordMember `json:"members,omitempty"`
	// Confirmed: a majority confirmed Members during this call.
	Confirmed bool `json:"confirmed,omitempty"`
	// Boots are the starts that the node knows of, its own included.
	Boots map[string]boot `json:"boots,omitempty"`
}

// changeRequest asks a member of a running cluster to make a change.
type changeRequest struct {
	Name   string `json:"name,omitempty"`
	URL    string `json:"url,omitempty"`
	Member string `json:"member,omitempty"`
}

// joinAnswer admits a node.
type joinAnswer struct {
	Cluster string         `json:"cluster"`
	Member  string         `json:"member"`
	Members []recordMember `json:"members"`
}

// refusedAnswer is what a peer sends instead of an answer. Final: a retry will be refused too.
type refusedAnswer struct {
	Error string `json:"error"`
	Final bool   `json:"final"`
}

// peerNet is this node's end of the connections between nodes.
type peerNet struct {
	info   transport.TLSInfo
	ln     net.Listener
	srv    *http.Server
	client *http.Client
	done   chan struct{} // closed when srv has ended
}

// listenPeers opens the peer port. Requests are served by h.
func listenPeers(cfg Config, h http.Handler) (*peerNet, error) {
	info, err := cfg.tlsInfo()
	if err != nil {
		return nil, err
	}
	own, err := url.Parse(cfg.own().URL)
	if err != nil {
		return nil, fmt.Errorf("embedded: URL of %q: %w", cfg.Name, err)
	}
	addr := own.Host
	if cfg.ListenPeers != "" {
		addr = cfg.ListenPeers
	}
	conf, err := info.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("embedded: certificate for the other nodes: %w", err)
	}
	info.HandshakeFailure = nil
	ln, err := transport.NewListenerWithOpts(addr, "https",
		transport.WithTLSInfo(&info), transport.WithSocketOpts(&transport.SocketOpts{}),
		transport.WithTimeout(rafthttp.ConnReadTimeout, rafthttp.ConnWriteTimeout),
	)
	if err != nil {
		return nil, fmt.Errorf("embedded: listen for the other nodes: %w", err)
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true) // raft's streams are designed for it
	p := &peerNet{
		info: info, ln: ln, done: make(chan struct{}),
		srv: &http.Server{
			Handler: h, Protocols: &protocols, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 5 * time.Minute,
			ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
		},
		client: &http.Client{Transport: &http.Transport{
			TLSClientConfig: conf, DialContext: (&net.Dialer{Timeout: askTimeout}).DialContext, IdleConnTimeout: 5 * time.Second,
		}},
	}
	go func() {
		defer close(p.done)
		_ = p.srv.Serve(ln) // it ends with close
	}()
	return p, nil
}

func (p *peerNet) close() error {
	err := p.srv.Close()
	<-p.done
	p.client.CloseIdleConnections()
	if err != nil {
		return fmt.Errorf("embedded: close the peer port: %w", err)
	}
	return nil
}

// call sends a request to a peer. A final refusal wraps ErrRefused.
func (p *peerNet) call(ctx context.Context, method, base, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, base+path, body)
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	res, err := p.client.Do(req)
	if err != nil {
		return err //nolint:wrapcheck // it names the URL
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(res.Body, mostAnswer))
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", base, err)
	}
	if res.StatusCode != http.StatusOK {
		var no refusedAnswer
		if err := json.Unmarshal(data, &no); err != nil || no.Error == "" {
			return fmt.Errorf("%s answers with status %d", base, res.StatusCode)
		}
		if no.Final {
			return fmt.Errorf("%s: %w", no.Error, ErrRefused)
		}
		return errors.New(no.Error)
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("decode the answer of %s: %w", base, err)
	}
	return nil
}

// heard is the answer of one peer, or why there is none.
type heard struct {
	peer Peer
	info nodeInfo
	err  error
}

// ask queries all peers concurrently, each for askTimeout. The answers are in the order of the
// peers.
func (p *peerNet) ask(ctx context.Context, peers []Peer, confirm bool) []heard {
	all := make([]heard, len(peers))
	path := pathNode
	if confirm {
		path += "?confirm=true"
	}
	var asking sync.WaitGroup
	for i, peer := range peers {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			all[i].peer = peer
			all[i].err = p.call(ctx, http.MethodGet, peer.URL, pathNode+strings.TrimPrefix(path, pathNode), nil, &all[i].info)
		})
	}
	asking.Wait()
	return all
}

// others returns the peers on the list, and the other members that this node knows of.
func (e *Etcd) others() []Peer {
	var peers []Peer
	for _, p := range e.cfg.Cluster {
		if p.Name != e.cfg.Name {
			peers = append(peers, p)
		}
	}
	own := e.cfg.peerURL()
	rec := e.recorded()
	if rec == nil {
		return peers
	}
	for _, m := range rec.Members {
		known := slices.ContainsFunc(peers, func(p Peer) bool { return p.URL == m.URL })
		if m.ID != rec.Member && m.URL != own && m.URL != aloneURL && !known {
			peers = append(peers, Peer{Name: m.Name, URL: m.URL})
		}
	}
	return peers
}

// servePeer answers the other nodes.
func (e *Etcd) servePeer(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case pathNode:
		e.answer(w, r, http.MethodGet, func(ctx context.Context, _ changeRequest) (any, error) {
			return e.tell(ctx, r.URL.Query().Get("confirm") != ""), nil
		})
	case pathJoin:
		e.answer(w, r, http.MethodPost, func(ctx context.Context, req changeRequest) (any, error) { return e.letIn(ctx, req.Name, req.URL) })
	case pathPromote:
		e.answer(w, r, http.MethodPost, func(ctx context.Context, req changeRequest) (any, error) {
			return struct{}{}, e.promote(ctx, parseID(req.Member))
		})
	case pathMove:
		e.answer(w, r, http.MethodPost, func(ctx context.Context, req changeRequest) (any, error) {
			return struct{}{}, e.move(ctx, parseID(req.Member), req.URL)
		})
	default:
		h := e.raft.Load()
		if h == nil {
			http.Error(w, "etcd does not run here yet", http.StatusServiceUnavailable)
			return
		}
		(*h).ServeHTTP(w, r)
	}
}

func (e *Etcd) answer(w http.ResponseWriter, r *http.Request, method string, f func(context.Context, changeRequest) (any, error)) {
	w.Header().Set("Content-Type", "application/json")
	if r.Method != method {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	var req changeRequest
	if method == http.MethodPost {
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostAnswer)).Decode(&req); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), actTimeout)
	defer cancel()
	out, err := f(ctx, req)
	if err != nil {
		final := errors.Is(err, ErrRefused)
		status := http.StatusServiceUnavailable
		if final {
			status = http.StatusConflict
		}
		w.WriteHeader(status)
		out = refusedAnswer{Error: strings.TrimSuffix(err.Error(), ": "+ErrRefused.Error()), Final: final}
	}
	_ = json.NewEncoder(w).Encode(out) // a peer that is gone retries
}
