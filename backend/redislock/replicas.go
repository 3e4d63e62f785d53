package redislock

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

const maxReplicas = 16

// ErrReplicas means that too few replicas had a write in time: see Config.Replicas. The
// request may have worked. It is wrapped in a *backend.UnavailableError.
var ErrReplicas = errors.New("too few replicas have the write")

// replication is the number of replicas that must have a write before it counts.
type replication struct {
	n       int
	timeout time.Duration
	key     string // the key that is written: see extend
}

// replicationOf returns nil if no replicas are waited for.
func replicationOf(cfg Config) *replication {
	if cfg.Replicas == 0 {
		return nil
	}
	const share = 2 // of the time of a request
	return &replication{n: cfg.Replicas, timeout: cfg.RequestTimeout / share, key: "{" + cfg.Prefix + "0}:k"}
}

// A link sends three commands over one connection: its own, extend, and wait. WAIT covers what
// that connection wrote, and returns a wrong answer on any other. A key is written in between, so
// that WAIT also covers what other connections wrote before and the command only read, such as a
// grant by hand-over. This write adds nothing, so that a full memory allows it. If the key does
// not exist yet, which extend answers with 0, the link sends create and wait.

// keepKey is how long the written key is kept: longer than any client can hold a lease
// without a request.
const keepKey = 2 * MaxTTL

func (r *replication) extend() []string { return []string{"PEXPIRE", r.key, program.Millis(keepKey)} }

func (r *replication) create() []string {
	return []string{"SET", r.key, "1", "PX", program.Millis(keepKey)}
}

func (r *replication) wait() []string {
	return []string{"WAIT", strconv.Itoa(r.n), program.Millis(r.timeout)}
}

// enough returns nil if so many replicas have the write.
func (r *replication) enough(n int64) error {
	if n < int64(r.n) {
		return fmt.Errorf("%w: %s, and %s are needed", ErrReplicas, strconv.FormatInt(n, 10), strconv.Itoa(r.n))
	}
	return nil
}

// missing is the error when the number of replicas is unknown. It says nothing about the command
// itself: that was executed, and must neither be taken for refused nor be retried.
func (r *replication) missing(err error) error { return fmt.Errorf("%w: %s", ErrReplicas, err.Error()) }
