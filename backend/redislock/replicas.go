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
// grant that was handed over, for one. It adds nothing, so that a full memory allows it.
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
		// Of what was asked itself this says nothing: it was done, and must not be taken for
		// refused, or be asked again.
		return rueidis.RedisMessage{}, fmt.Errorf("%w: %s", ErrReplicas, fromRueidis(err).Error())
	}
	if n < int64(r.n) {
		return rueidis.RedisMessage{}, fmt.Errorf("%w: %s, and %s are needed", ErrReplicas, strconv.FormatInt(n, 10), strconv.Itoa(r.n))
	}
	return msg, nil
}

// keepKey is for how long the key is kept that is written: longer than anybody may go without
// a request and have a lease.
const keepKey = 2 * MaxTTL

// waitAnew waits for the replicas where the key is not there yet. The connection may be
// another one, which is made where there is none: what was asked has been done, and is not
// asked again over one that others make.
func (l *rueidisLink) waitAnew(ctx context.Context) (int64, error) {
	got := l.client.DoMulti(redisprogram.Undated(withDial(ctx)),
		l.client.B().Set().Key(l.replicas.key).Value("1").Px(keepKey).Build(), l.wait())
	if err := got[0].Error(); err != nil {
		return 0, err //nolint:wrapcheck // the caller does
	}
	return got[1].AsInt64() //nolint:wrapcheck // as above
}

func (l *rueidisLink) wait() rueidis.Completed {
	return l.client.B().Wait().Numreplicas(int64(l.replicas.n)).Timeout(l.replicas.timeout.Milliseconds()).Build()
}
