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
	const keep = 2 * MaxTTL // so that it is there when the memory is full: see waitFull
	r := l.replicas
	got := l.client.DoMulti(redisprogram.Undated(ctx), cmd,
		l.client.B().Set().Key(r.key).Value("1").Px(keep).Build(),
		l.client.B().Wait().Numreplicas(int64(r.n)).Timeout(r.timeout.Milliseconds()).Build())
	msg, err := got[0].ToMessage()
	if err != nil {
		return rueidis.RedisMessage{}, fromRueidis(err)
	}
	n, err := got[2].AsInt64()
	if written := got[1].Error(); written != nil {
		if n, err = 0, fromRueidis(written); isFull(err) {
			n, err = l.waitFull(ctx, keep)
		}
	}
	if err != nil {
		// Of what was asked itself this says nothing: it was done, and must not be taken for
		// refused, or be asked again.
		return rueidis.RedisMessage{}, fmt.Errorf("%w: %s", ErrReplicas, err.Error())
	}
	if n < int64(r.n) {
		return rueidis.RedisMessage{}, fmt.Errorf("%w: %s, and %s are needed", ErrReplicas, strconv.FormatInt(n, 10), strconv.Itoa(r.n))
	}
	return msg, nil
}

// waitFull waits for the replicas where the memory of the server is full: then nothing may be
// written but what adds nothing.
func (l *rueidisLink) waitFull(ctx context.Context, keep time.Duration) (int64, error) {
	r := l.replicas
	got := l.client.DoMulti(redisprogram.Undated(ctx),
		l.client.B().Pexpire().Key(r.key).Milliseconds(keep.Milliseconds()).Build(),
		l.client.B().Wait().Numreplicas(int64(r.n)).Timeout(r.timeout.Milliseconds()).Build())
	switch there, err := got[0].AsInt64(); {
	case err != nil:
		return 0, fromRueidis(err)
	case there == 0:
		return 0, errors.New("the memory is full, and nothing can be written")
	}
	n, err := got[1].AsInt64()
	if err != nil {
		return 0, fromRueidis(err)
	}
	return n, nil
}

func isFull(err error) bool {
	server, ok := errors.AsType[*serverError](err)
	return ok && server.Code == "OOM"
}
