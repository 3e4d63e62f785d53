package consullock

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/seqlock"
	"github.com/holdfast-io/holdfast/internal/sessions"
)

const name = "consul"

// Config configures a Backend.
type Config struct {
	// Prefix is the prefix of all keys, without slashes around it. Default: "holdfast". Optional.
	Prefix string
	// MinTTL is the servers' session_ttl_min. Default: 10 s, as Consul's own. Optional.
	MinTTL time.Duration
	// Logger receives errors that cannot be returned to a caller. Default: slog.Default(). Optional.
	Logger *slog.Logger
}

const (
	defaultPrefix = "holdfast"
	defaultMinTTL = 10 * time.Second
	maxTTL        = 24 * time.Hour // of Consul's sessions
	// lag is how late the leader may end a session.
	lag = 2 * time.Second
)

// Backend keeps leases in Consul. It implements backend.Backend. Its methods are safe for
// concurrent use. Make it with New or Open.
type Backend struct {
	verbs // of an engine of seqlock

	cfg    Config
	caps   backend.Capabilities
	client *api.Client
	// polls is for queries that Consul keeps open. Open gives it connections of its own: see
	// target.client.
	polls *api.Client
	owned []*connect.HTTP // of Open, closed by Close

	onAgent atomic.Bool   // a session is tied to the node of the agent
	hearing chan struct{} // a value for each session that has a query of its own

	sessions *sessions.Sessions[*session]

	mu        sync.Mutex           // guards the fields below
	followers map[string]*follower // of locks that a caller here waits for
	coming    map[string]int       // by lock: acquires that are joining its queue at this moment and read it
	questions int                  // followers that have a query of their own
	shared    shared               // the other followers
}

// verbs are the calls of backend.Backend.
type verbs = lockstate.Verbs

// store implements seqlock.Store.
type store struct{ *Backend }

var _ backend.Backend = (*Backend)(nil)

// New makes a backend on a client that the program already has. It sends nothing yet. Close does
// not close the client.
//
// Errors: *backend.InvalidError for a field that is out of bounds.
func New(client *api.Client, cfg Config) (*Backend, error) {
	if client == nil {
		return nil, &backend.InvalidError{Field: "client", Value: "nil", Bound: "a client"}
	}
	if cfg.Prefix == "" {
		cfg.Prefix = defaultPrefix
	}
	if err := validatePrefix(cfg.Prefix); err != nil {
		return nil, err
	}
	if cfg.MinTTL == 0 {
		cfg.MinTTL = defaultMinTTL
	}
	if cfg.MinTTL < time.Millisecond || cfg.MinTTL > time.Hour {
		return nil, &backend.InvalidError{Field: "min_ttl", Value: cfg.MinTTL.String(), Bound: "1ms to 1h"}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	b := &Backend{
		cfg: cfg, client: client, polls: client, hearing: make(chan struct{}, maxHearing),
		followers: make(map[string]*follower), coming: make(map[string]int), shared: shared{members: make(map[*follower]struct{}), again: func() {}},
		caps: backend.Capabilities{
			Name: name, Sessions: true, Bound: true, Shared: true, Permits: true, FIFO: true, Push: true, LossPush: true,
			Durable: true, TokenKind: "revision", MinTTL: cfg.MinTTL, MaxTTL: maxTTL, ExpiryLag: lag, Doubles: true,
		},
	}
	engine := seqlock.NewEngine(sessions.Config[*session]{Caps: b.caps, New: b.newSession, Fail: b.fail}, store{b})
	b.verbs, b.sessions = engine, engine.Sessions
	return b, nil
}

func validatePrefix(p string) error {
	if len(p) > backend.MaxNameLen || !connect.IsPath(p) {
		return &backend.InvalidError{Field: "prefix", Value: strconv.QuoteToGraphic(p), Bound: `like "team/locks", without "." and "..", of letters, digits and -_.:@=+,`}
	}
	return nil
}

// Capabilities returns what Consul can do.
func (b *Backend) Capabilities() backend.Capabilities { return b.caps }

// Close ends the sessions that were opened here, with their leases, and the goroutines. It takes at
// most a second if Consul is unreachable; then the sessions end when they expire. A second Close
// does nothing.
func (b *Backend) Close() error {
	b.sessions.Close()
	for _, o := range b.owned {
		o.Close()
	}
	return nil
}

// The keys. All keys of a session are locked by it, and deleted with it.
func (b *Backend) locksKey() string { return b.cfg.Prefix + "/locks/" }

func (b *Backend) lockKey(lock string) string {
	return b.locksKey() + backend.EscapeSegment(lock) + "/"
}

func (b *Backend) leaseKey(k seqlock.Key) string { return b.lockKey(k.Name) + string(k.ID) }

func (b *Backend) abandonedKey(k seqlock.Key) string {
	return b.cfg.Prefix + "/abandoned/" + string(k.ID) + "/" + backend.EscapeSegment(k.Name)
}

// noticeKey is keyed by Consul's session, because a lease's key names that, too.
func (b *Backend) noticeKey(uuid string) string { return b.cfg.Prefix + "/notices/" + uuid }

// tokenKey is the key that every break of a free lock sets to a new value: the index of that write
// is a token.
func (b *Backend) tokenKey() string { return b.cfg.Prefix + "/token" }

// consistent makes the leader answer, after it has verified that it is the leader.
func consistent(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
}

// errNoIndex is the error of an answer that is not Consul's. The client library takes any 404 for
// "there is nothing", and a proxy in front of Consul may return one.
var errNoIndex = errors.New("the answer has no index")

// below returns the present keys below a prefix, and the index of the read.
func (b *Backend) below(ctx context.Context, prefix string) (api.KVPairs, uint64, error) {
	ctx, cancel := answering(ctx)
	defer cancel()
	pairs, meta, err := b.client.KV().List(prefix, consistent(ctx))
	if err != nil {
		return nil, 0, err
	}
	if meta.LastIndex == 0 {
		return nil, 0, errNoIndex
	}
	return pairs, meta.LastIndex, nil
}

// get returns a key, or nil if it does not exist.
func (b *Backend) get(ctx context.Context, key string) (*api.KVPair, error) {
	ctx, cancel := answering(ctx)
	defer cancel()
	pair, _, err := b.client.KV().Get(key, consistent(ctx))
	return pair, err
}

// txn executes all of the operations or none. *txnError: none, and why.
func (b *Backend) txn(ctx context.Context, ops api.KVTxnOps) ([]*api.KVPair, error) {
	ctx, cancel := answering(ctx)
	defer cancel()
	ok, res, _, err := b.client.KV().Txn(ops, consistent(ctx))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, &txnError{res.Errors}
	}
	return res.Results, nil
}

// delete deletes a key, which may be gone.
func (b *Backend) delete(ctx context.Context, key string) error {
	ctx, cancel := answering(ctx)
	defer cancel()
	_, err := b.client.KV().Delete(key, (&api.WriteOptions{}).WithContext(ctx))
	return err
}
