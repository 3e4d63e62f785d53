package redlock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// Release releases a lease. It is sent to all nodes; a node that does not answer now gets it
// when it is up again. With req.Abandon the lease can never be granted afterwards, which a
// majority has recorded when the error is nil. Errors: ErrLost if there is no such lease,
// unless req.Abandon is set; *InvalidError; *UnavailableError; ErrClosed; ctx's cause.
func (b *Backend) Release(ctx context.Context, req backend.ReleaseRequest) error {
	if err := req.Validate(); err != nil {
		return err
	}
	ctx, cancel, err := b.begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	if req.Abandon {
		b.quit(req.Name, req.Lease)
	}
	found := 0
	ask := request{verb: opRelease, lock: req.Name, args: []string{req.Name, string(req.Lease)}, terms: terms{abandon: flag(req.Abandon)}}
	p, err := b.ask(ctx, ask, func(p *poll, x answer) need {
		if x.err == nil {
			d := decode(x.list)
			found += toInt(x.list[0].S == shortWay || d.Number() == 1)
		}
		decisive := req.Abandon || found >= b.majority || found+p.silent() < b.majority
		return p.enough(b.majority, decisive && p.good >= b.majority)
	})
	switch {
	case err != nil:
		return toKind(ctx, opRelease, err, true)
	case p.good < b.majority:
		return toKind(ctx, opRelease, p.failure(), true)
	case req.Abandon, found > 0 && found+p.silent() >= b.majority:
		return nil
	default:
		return backend.ErrLost
	}
}

// Renew extends leases, each from the moment at which the nodes receive the request. It takes
// one request to each node for 256 leases or less. The result of a lease is ErrLost if no
// quorum has it any more, and *UnavailableError if too few nodes answered. Errors:
// *InvalidError; ErrUnsupported; ErrClosed; ctx's cause.
func (b *Backend) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	if err := req.Validate(b.caps); err != nil {
		return backend.RenewResult{}, err
	}
	ctx, cancel, err := b.begin(ctx)
	if err != nil {
		return backend.RenewResult{}, err
	}
	defer cancel()
	res := backend.RenewResult{Leases: make([]backend.Renewal, 0, len(req.Leases))}
	for chunk := range slices.Chunk(req.Leases, maxBatch) {
		renewals, err := b.renew(ctx, chunk)
		if err != nil {
			return backend.RenewResult{}, toKind(ctx, opRenew, err, true)
		}
		res.Leases = append(res.Leases, renewals...)
	}
	return res, nil
}

// renewal is what the nodes answered about one lease.
type renewal struct {
	n      int // nodes that have it
	quorum int
	tokens []vote
	ttls   []time.Duration // for how long each of them renewed it
}

// open reports whether the nodes that have not answered make a difference.
func (r *renewal) open(silent, majority int) bool {
	if r.n >= r.quorum {
		_, sure := settled(r.tokens, majority)
		return !sure
	}
	return r.n+silent >= r.quorum
}

// left returns for how long a quorum has it. Without a TTL of the request each node renews a vote for the TTL that it has on
// record, and a node may have missed the newest.
func (r *renewal) left() time.Duration {
	slices.Sort(r.ttls)
	return r.ttls[len(r.ttls)-r.quorum]
}

func (b *Backend) renew(ctx context.Context, leases []backend.TimedRenewal) ([]backend.Renewal, error) {
	a := []string{strconv.Itoa(len(leases))}
	for _, l := range leases {
		a = append(a, l.Name, string(l.Lease), program.Millis(l.TTL))
	}
	all := make([]renewal, len(leases))
	for i := range all {
		all[i].quorum = b.majority
	}
	p, err := b.ask(ctx, many("renew", a...), func(p *poll, x answer) need {
		if x.err == nil {
			p.errs[x.node] = note(new(decode(x.list)), b, all)
		}
		if slices.ContainsFunc(all, func(r renewal) bool { return r.open(p.silent(), b.majority) }) {
			return everyone
		}
		return nobody
	})
	if err != nil {
		return nil, err
	}
	out := make([]backend.Renewal, len(leases))
	for i, r := range all {
		switch {
		case r.n >= r.quorum:
			token, _ := settled(r.tokens, b.majority)
			out[i] = backend.Renewal{Token: token, Left: r.left()}
		case r.n+p.silent() < r.quorum:
			out[i].Err = backend.ErrLost
		default:
			out[i].Err = toKind(ctx, opRenew, p.failure(), true)
		}
	}
	return out, nil
}

// note records what one node answered about the leases.
func note(d *decoder, b *Backend, all []renewal) error {
	if d.Text() != "OK" || len(d.List) != len(all) {
		return program.ErrReply
	}
	for i := range all {
		one := d.sub()
		if one.Text() != "R" {
			continue
		}
		v := vote{Holder: backend.Holder{Token: one.Token()}, final: one.Number() == 1}
		v.Mode, v.limit = one.Mode(one.Text()), int(one.Number())
		ttl := time.Duration(one.Number()) * time.Millisecond
		if one.Err != nil {
			return one.Err
		}
		all[i].n++
		all[i].tokens, all[i].ttls = append(all[i].tokens, v), append(all[i].ttls, ttl)
		all[i].quorum = max(all[i].quorum, b.quorum(v.claim()))
	}
	return nil
}

// settled returns the token of a lease by its votes: the one that a majority has, or that was
// written back. The second result is false if the token may be another.
func settled(vs []vote, majority int) (fence.Token, bool) {
	have := make(map[fence.Token]int)
	var greatest, final fence.Token
	for _, v := range vs {
		if have[v.Token]++; have[v.Token] >= majority {
			return v.Token, true
		}
		greatest = max(greatest, v.Token)
		if v.final {
			final = max(final, v.Token)
		}
	}
	if final > 0 {
		return final, true
	}
	return greatest, false
}

// Break takes the lock from its holders. Leases requested in the meantime stay. Errors:
// *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	if err := req.Validate(); err != nil {
		return backend.BreakResult{}, err
	}
	ctx, cancel, err := b.begin(ctx)
	if err != nil {
		return backend.BreakResult{}, err
	}
	defer cancel()
	res, err := b.breakLock(ctx, &req)
	return res, toKind(ctx, opBreak, err, true)
}

// breakLock reads the holders of the lock, and then takes it from these, under a token that
// is settled like that of a grant. A holder that releases its lease in the meantime has done
// so if it found a majority of its votes, and is a victim otherwise, as far as the nodes
// answer.
func (b *Backend) breakLock(ctx context.Context, req *backend.BreakRequest) (backend.BreakResult, error) {
	s, silent, err := b.readState(ctx, req.Name)
	if err != nil {
		return backend.BreakResult{}, err
	}
	const attempts, leastMargin = 16, 256
	info, votes := b.describe(req.Name, s, silent), tally(s.votes)
	info.Holders = slices.DeleteFunc(info.Holders, func(h backend.Holder) bool { return !req.Takes(h.Lease) })
	by, victims := string(backend.NewLeaseID()), []string{strconv.Itoa(len(info.Holders))}
	for _, h := range info.Holders {
		victims = append(victims, string(h.Lease))
	}
	token := max(info.Token+1, fence.Token(b.clock())) //nolint:gosec // not negative
	taken := make(map[backend.LeaseID]int)             // votes
	for n := range attempts {
		ask := one("break", req.Name, append([]string{strconv.FormatUint(uint64(token), 10), by}, victims...)...)
		acks, greatest, err := b.breakUnder(ctx, ask, token, taken)
		if err != nil {
			return backend.BreakResult{}, err
		}
		if acks >= b.majority {
			res := backend.BreakResult{Token: token}
			for _, h := range info.Holders {
				if k := taken[h.Lease]; k > 0 && k > len(votes[h.Lease].votes)-b.majority {
					res.Broken = append(res.Broken, h)
				}
			}
			return res, nil
		}
		// Each acquire raises the counter to its clock, in microseconds. The margin soon
		// exceeds the duration of a round trip.
		token = greatest + leastMargin<<n
		if !retry.Pause(ctx, retry.About(time.Millisecond)) {
			return backend.BreakResult{}, context.Cause(ctx)
		}
	}
	return backend.BreakResult{}, errTokens
}

// breakUnder sends a break under the token to all nodes that are up, and counts in taken the votes
// that leases have lost. It returns how many nodes accepted the token, and the greatest that they
// know. The error is nil if those whose clock is near the client's are a majority.
func (b *Backend) breakUnder(ctx context.Context, ask request, token fence.Token, taken map[backend.LeaseID]int) (int, fence.Token, error) {
	acks, apart, greatest := 0, 0, token
	p, err := b.ask(ctx, ask, func(_ *poll, x answer) need {
		if x.err != nil {
			return everyone
		}
		d := decode(x.list)
		switch d.Text() {
		case "OK":
			acks++
		case "C":
			apart++
		default:
			greatest = max(greatest, d.Token())
		}
		for len(d.List) > 0 && d.Err == nil {
			taken[backend.LeaseID(d.Text())]++
		}
		return everyone
	})
	switch {
	case err != nil:
	case p.good < b.majority:
		err = p.failure()
	case p.good-apart < b.majority:
		err = ErrClock
	}
	return acks, greatest, err
}

// OpenSession returns ErrUnsupported: every lease has an end of its own.
func (b *Backend) OpenSession(_ context.Context, req backend.SessionRequest) error {
	return req.Validate(b.caps)
}

// EndSession returns ErrUnsupported: every lease has an end of its own.
func (b *Backend) EndSession(context.Context, backend.SessionID) error {
	if b.base.Err() != nil {
		return backend.ErrClosed
	}
	return fmt.Errorf("sessions: %w", backend.ErrUnsupported)
}
