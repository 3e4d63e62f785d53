package redislock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/internal/redisprogram"
)

const maxReplicas = 16

// ErrReplicas says that too few replicas had a write in time: see Config.Replicas. What was
// asked may have worked. It comes inside a *backend.UnavailableError.
var ErrReplicas = errors.New("too few replicas have the write")

// replication is how many replicas have to have what was done before it counts.
type replication struct {
	n       int
	timeout time.Duration
	key     string // that is written: see sendAndWait
}

// replicationOf is nil where nothing is waited for.
func replicationOf(cfg Config) *replication {
	if cfg.Replicas == 0 {
		return nil
	}
	full, err := cfg.withDefaults()
	if err != nil {
		return nil // it is told by who uses it
	}
	const share = 2 // of the time of a request
	return &replication{n: cfg.Replicas, timeout: full.RequestTimeout / share, key: "{" + full.Prefix + "0}:k"}
}

// sendAndWait sends the command and waits for the replicas, on one connection: WAIT is
// about what that connection wrote, and tells lies on any other. Something is written in
// between, so that it is also about what others wrote before and the command only read: a
// grant that was handed over, for one.
func (l *rueidisLink) sendAndWait(ctx context.Context, cmd rueidis.Completed) (rueidis.RedisMessage, error) {
	const keep = time.Hour
	r := l.replicas
	got := l.client.DoMulti(redisprogram.Undated(ctx), cmd,
		l.client.B().Set().Key(r.key).Value("1").Px(keep).Build(),
		l.client.B().Wait().Numreplicas(int64(r.n)).Timeout(r.timeout.Milliseconds()).Build())
	msg, err := got[0].ToMessage()
	if err != nil {
		return rueidis.RedisMessage{}, fromRueidis(err)
	}
	if err := got[1].Error(); err != nil {
		return rueidis.RedisMessage{}, fmt.Errorf("%w: %w", ErrReplicas, fromRueidis(err))
	}
	n, err := got[2].AsInt64()
	if err != nil {
		return rueidis.RedisMessage{}, fmt.Errorf("%w: %w", ErrReplicas, fromRueidis(err))
	}
	if n < int64(r.n) {
		return rueidis.RedisMessage{}, fmt.Errorf("%w: %s, and %s are needed", ErrReplicas, strconv.FormatInt(n, 10), strconv.Itoa(r.n))
	}
	return msg, nil
}
