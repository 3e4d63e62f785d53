package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// Cluster is the cluster that the server's own store is a node of. Its methods must be safe for
// concurrent use. An error that is backend.ErrInvalid is 400, one that is ErrClusterRefused
// 409, and any other 503.
type Cluster interface {
	// Waiting returns what the node waits for before it can grant a lock, or "" if it can.
	Waiting() string
	// ID is that of the store, as backend.Identified has it; "" while the node waits.
	ID() string
	// Metrics returns what /metrics exports of the cluster.
	Metrics() prometheus.Collector
	// Status is sent to the client as JSON.
	Status(ctx context.Context) any
	// Init forms a new cluster.
	Init(ctx context.Context) error
	// Add adds a node as a member, before the node starts.
	Add(ctx context.Context, name, url string) error
	// Remove removes a member for good.
	Remove(ctx context.Context, name string) error
	// Promote makes a learner a voting member.
	Promote(ctx context.Context, name string) error
	// Compact makes room on this node, and clears the alarm that its quota was reached.
	Compact(ctx context.Context) error
	// Snapshot writes all data of the cluster to w.
	Snapshot(ctx context.Context, w io.Writer) error
}

// ErrClusterRefused means that the Cluster refuses a change. Retrying will not help.
var ErrClusterRefused = errors.New("refused")

const clusterPath = "/v1/cluster"

// clusterRoutes returns the routes that exist only with Config.Cluster.
func clusterRoutes() []route {
	return []route{
		{"GET", clusterPath, Manage, nil, (*Server).clusterStatus},
		{"GET", clusterPath + "/snapshot", Manage, nil, (*Server).clusterSnapshot},
		{"POST", clusterPath + "/{action}", Manage, nil, (*Server).changeCluster},
	}
}

const (
	// clusterTimeout bounds a change of the members, which needs a majority.
	clusterTimeout = 30 * time.Second
	// compactTimeout bounds the time to write all data of a node again.
	compactTimeout = 10 * time.Minute
)

// clusterChange is the body of a change: the node that it is about.
type clusterChange struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

// unready returns why the server's own store cannot grant anything. It is nil if the store can,
// or is not the server's own.
func (s *Server) unready() error {
	if s.cfg.Cluster == nil {
		return nil
	}
	why := s.cfg.Cluster.Waiting()
	if why == "" {
		return nil
	}
	return &backend.UnavailableError{Backend: s.caps.Name, Op: "ready", Err: errors.New(why)}
}

// storeID returns the ID of the store; empty if it is not known, or not yet.
func (s *Server) storeID() string {
	switch {
	case s.cfg.Cluster != nil:
		return s.cfg.Cluster.ID()
	case s.identified != nil:
		return s.identified.StoreID()
	}
	return ""
}

// checkStore refuses a client that uses another store.
func (s *Server) checkStore(r *http.Request) error {
	want, is := r.Header.Get(wire.HeaderStore), s.storeID()
	if want == "" || is == "" || want == is {
		return nil
	}
	return &refusal{http.StatusPreconditionFailed, errors.New("this server has another store than the client")}
}

// clusterStatus serves GET /v1/cluster.
func (s *Server) clusterStatus(w http.ResponseWriter, r *request) {
	s.write(w, r, http.StatusOK, s.cfg.Cluster.Status(r.Context()))
}

// changeCluster serves POST /v1/cluster/{action}.
func (s *Server) changeCluster(w http.ResponseWriter, r *request) {
	c := s.cfg.Cluster
	var change clusterChange
	if len(r.body) > 0 {
		if err := wire.Decode(r.body, &change); err != nil {
			s.fail(w, r, err)
			return
		}
	}
	within := clusterTimeout
	if r.actionName == "compact" {
		within = compactTimeout
	}
	ctx, cancel := context.WithTimeout(r.Context(), within)
	defer cancel()
	var err error
	switch r.actionName {
	case "init":
		err = c.Init(ctx)
	case "add":
		err = c.Add(ctx, change.Name, change.URL)
	case "remove":
		err = c.Remove(ctx, change.Name)
	case "promote":
		err = c.Promote(ctx, change.Name)
	case "compact":
		err = c.Compact(ctx)
	default:
		s.fail(w, r, invalid("action", short(r.actionName), "init, add, remove, promote or compact"))
		return
	}
	s.audit.act(r, "cluster", slog.String("action", r.actionName), slog.String("node", change.Name), slog.Bool("done", err == nil))
	if err != nil {
		s.fail(w, r, s.clusterError(err))
		return
	}
	s.write(w, r, http.StatusOK, c.Status(ctx))
}

func (s *Server) clusterError(err error) error {
	switch {
	case errors.Is(err, ErrClusterRefused):
		return &refusal{http.StatusConflict, err}
	case errors.Is(err, backend.ErrInvalid), errors.Is(err, backend.ErrUnavailable):
		return err
	default:
		return &backend.UnavailableError{Backend: s.caps.Name, Op: "cluster", Err: err}
	}
}

// clusterSnapshot serves GET /v1/cluster/snapshot.
func (s *Server) clusterSnapshot(w http.ResponseWriter, r *request) {
	s.audit.act(r, "cluster", slog.String("action", "snapshot"))
	out := &snapshotWriter{w: w, s: s}
	err := s.cfg.Cluster.Snapshot(r.Context(), out)
	switch {
	case err == nil:
	case !out.begun:
		s.fail(w, r, s.clusterError(err))
	default:
		// A truncated snapshot must not look like a complete one, so the connection is aborted.
		panic(http.ErrAbortHandler) //nolint:forbidigo // it is how net/http is told
	}
}

// snapshotWriter writes an answer of any length. Each part has a deadline of its own.
type snapshotWriter struct {
	w     http.ResponseWriter
	s     *Server
	begun bool
}

func (o *snapshotWriter) Write(p []byte) (int, error) {
	if !o.begun {
		o.begun = true
		o.w.Header().Set("Content-Type", "application/octet-stream")
	}
	o.s.deadline(o.w)
	n, err := o.w.Write(p)
	if err != nil {
		return n, fmt.Errorf("write the snapshot: %w", err)
	}
	return n, nil
}
