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

// ErrReplicas means that too few replicas had a write in time: see Config.Replicas. The
// request may have worked. It is wrapped in a *backend.UnavailableError.
var ErrReplicas = errors.New("too few replicas have the write")

// replication is the number of replicas that must have a write before it counts.
type replication struct {
	n       int
	timeout time.Duration
	key     string // the key that is written: see sendAndWait
}

// replicationOf returns nil if no replicas are waited for.
func replicationOf(cfg Config) *replication {
	if cfg.Replicas == 0 {
		return nil
	}
	full, err := cfg.withDefaults()
	if err != nil {
		return nil // the caller reports it
	}
	const share = 2 // of the time of a request
	return &replication{n: cfg.Replicas, timeout: full.RequestTimeout / share, key: "{" + full.Prefix + "0}:k"}
}

// sendAndWait sends the command and waits for the replicas, on one connection: WAIT covers
// what that connection wrote, and returns a wrong answer on any other. A key is written in
// between, so that WAIT also covers what other connections wrote before and the command only
// read, such as a grant by hand-over. This write adds nothing, so that a full memory allows
// it.
func (l *rueidisLink) sendAndWait(ctx context.Context, cmd rueidis.Completed) (rueidis.RedisMessage, error) {
	r := l.replicas
	got := l.client.DoMulti(redisprogram.Undated(ctx), cmd,
		l.client.B().Pexpire().Key(r.key).Milliseconds(keepKey.Milliseconds()).Build(), l.wait())
	msg, err := got[0].ToMessage()
	if err != nil {
		return rueidis.RedisMessage{}, fromRueidis(err)
	}
	var n int64
	there, err := got[1].AsInt64()
	switch {
	case err != nil:
	case there == 0:
		n, err = l.waitAnew(ctx)
	default:
		n, err = got[2].AsInt64()
	}
	if err != nil {
		// This says nothing about the command itself: it was executed, and must neither be
		// taken for refused nor be retried.
		return rueidis.RedisMessage{}, fmt.Errorf("%w: %s", ErrReplicas, fromRueidis(err).Error())
	}
	if n < int64(r.n) {
		return rueidis.RedisMessage{}, fmt.Errorf("%w: %s, and %s are needed", ErrReplicas, strconv.FormatInt(n, 10), strconv.Itoa(r.n))
	}
	return msg, nil
}

// keepKey is how long the written key is kept: longer than any client can hold a lease
// without a request.
const keepKey = 2 * MaxTTL

// waitAnew waits for the replicas if the key does not exist yet. It may use another
// connection.
func (l *rueidisLink) waitAnew(ctx context.Context) (int64, error) {
	got := l.client.DoMulti(redisprogram.Undated(ctx),
		l.client.B().Set().Key(l.replicas.key).Value("1").Px(keepKey).Build(), l.wait())
	if err := got[0].Error(); err != nil {
		return 0, err //nolint:wrapcheck // the caller does
	}
	return got[1].AsInt64() //nolint:wrapcheck // as above
}

func (l *rueidisLink) wait() rueidis.Completed {
	return l.client.B().Wait().Numreplicas(int64(l.replicas.n)).Timeout(l.replicas.timeout.Milliseconds()).Build()
}
