package redislock

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// Acquire takes the lock, or waits in line for it. It is one request, and one push for
// a lease that waited; a timed lease that waited takes another request, which tells how
// much time it has. See backend.Backend.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	if err := req.Validate(b.caps); err != nil {
		return backend.Grant{}, err
	}
	if req.Timed {
		b.uses(req.TTL)
	}
	if req.Wait {
		return b.wait(ctx, req)
	}
	answer, asked, err := b.ask(ctx, req, "")
	if err != nil {
		return backend.Grant{}, err
	}
	d := decoder{list: answer}
	if d.text() != "G" {
		return backend.Grant{}, b.refused(req, answer)
	}
	return b.accept(req, &d, asked)
}

const opAcquire = "acquire"

// ask sends the request. The answer is not empty. Where it is not known what became of
// the request, the lease is in doubt from then on.
func (b *Backend) ask(ctx context.Context, req backend.AcquireRequest, channel string) ([]reply, time.Time, error) {
	mode, permits, limit, ttl := "x", "1", strconv.Itoa(req.Limit), "0"
	alone := "1 1 0 0 0 0 0"
	if req.Mode == backend.Shared {
		mode, permits = "s", strconv.Itoa(max(1, req.Permits))
		alone = "1 0 " + permits + " 1 " + limit + " 0 0"
	}
	if req.Timed {
		ttl = millis(req.TTL)
	}
	head := string(req.Session) + "\n" + mode + "\n" + permits + "\n"
	tail := "\n" + flag(req.Timed) + "\n" + flag(req.Reentrant) + "\n-\n" + channel + "\n" + req.Owner + "\n" + req.Note
	answer, asked, err := b.engine.do(ctx, false, "acquire",
		req.Name, string(req.Lease), string(req.Session), ttl, limit, flag(req.Reentrant), flag(req.Wait), head, tail, alone)
	if err == nil {
		return answer, asked, nil
	}
	err = toKind(opAcquire, err)
	var away *backend.UnavailableError
	if errors.As(err, &away) && away.MayHold {
		b.doubt(req)
	}
	return nil, asked, err
}

// accept reads what follows the "G" of an answer.
func (b *Backend) accept(req backend.AcquireRequest, d *decoder, asked time.Time) (backend.Grant, error) {
	g := d.grant()
	if d.err != nil {
		b.doubt(req)
		return backend.Grant{}, toKind(opAcquire, &sentError{sent: true, err: d.err})
	}
	return g.grant(asked), nil
}

func (b *Backend) refused(req backend.AcquireRequest, answer []reply) error {
	d := decoder{list: answer}
	return refusal(opAcquire, &d, req.Name, req.Limit)
}

// doubt is an acquire whose request may still be under way: when its lease is released,
// that request must not grant it again.
type doubt struct {
	session backend.SessionID
	until   time.Time
}

const (
	doubtFor   = 10 * time.Minute // longer than a request can be under way
	manyDoubts = 1000
)

func (b *Backend) doubt(req backend.AcquireRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if len(b.doubts) >= manyDoubts {
		for lease, d := range b.doubts {
			if d.until.Before(now) {
				delete(b.doubts, lease)
			}
		}
	}
	b.doubts[req.Lease] = doubt{session: req.Session, until: now.Add(doubtFor)}
}

// Release gives the lease back. With req.Abandon, and when an acquire of the lease was
// never answered, the server remembers that it must not be granted any more, for the
// session's TTL and at least five minutes. See backend.Backend.
func (b *Backend) Release(ctx context.Context, req backend.ReleaseRequest) error {
	const op = "release"
	if err := req.Validate(); err != nil {
		return err
	}
	b.mu.Lock()
	_, doubtful := b.doubts[req.Lease]
	b.mu.Unlock()
	abandon := "0"
	switch {
	case req.Abandon:
		abandon = "1"
	case doubtful:
		abandon = "2"
	}
	answer, _, err := b.engine.do(ctx, true, "release", req.Name, string(req.Lease), abandon, string(req.Session))
	if err != nil {
		return toKind(op, err)
	}
	if doubtful {
		b.mu.Lock()
		delete(b.doubts, req.Lease)
		b.mu.Unlock()
	}
	if answer[0].s == "OK" {
		return nil
	}
	return refusal(op, &decoder{list: answer}, req.Name, 0)
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func itoa[N int | int64](n N) string { return strconv.FormatInt(int64(n), 10) }

func shortQuote(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strconv.QuoteToGraphic(s)
}
