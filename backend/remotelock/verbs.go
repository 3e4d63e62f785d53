package remotelock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// OpenSession returns ErrUnsupported: over HTTP all leases are timed leases.
func (b *Backend) OpenSession(context.Context, backend.SessionRequest) error {
	return fmt.Errorf("sessions: %w", backend.ErrUnsupported)
}

// EndSession returns ErrUnsupported.
func (b *Backend) EndSession(context.Context, backend.SessionID) error {
	return fmt.Errorf("sessions: %w", backend.ErrUnsupported)
}

func lockPath(name string) string { return "/v1/locks/" + url.PathEscape(name) }

func leasePath(name string, id backend.LeaseID) string {
	return lockPath(name) + "/leases/" + url.PathEscape(string(id))
}

// Acquire takes the lock, or waits in the queue for it when req.Wait is set. When ctx ends
// during the wait, the place in the queue stays for a few seconds.
//
// Errors: *InvalidError, *LimitError, ErrUnsupported, *HeldError, ErrLost, *UnavailableError,
// ErrClosed, ctx's cause.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	if err := req.Validate(b.caps); err != nil {
		return backend.Grant{}, err
	}
	if req.Mode == backend.Shared && req.Limit == 1 {
		return backend.Grant{}, fmt.Errorf("a semaphore of one permit (acquire an exclusive lease instead): %w", backend.ErrUnsupported)
	}
	sent := time.Now()
	grant, err := b.first(ctx, req)
	for req.Wait && errors.Is(err, backend.ErrHeld) {
		if early := time.Since(sent) < b.poll/2; early && !retry.Pause(ctx, 20*time.Millisecond+rand.N(80*time.Millisecond)) {
			return backend.Grant{}, context.Cause(ctx)
		}
		sent = time.Now()
		grant, err = b.ask(ctx, req, true)
		err = stillUnknown(err)
	}
	if err == nil && grant.Waited && time.Since(sent) > req.TTL/20 {
		return b.askAgain(ctx, req)
	}
	return grant, err
}

// askAgain repeats the request for a grant at the end of a long poll, whose time left was
// counted from before the poll: that of the new answer is counted from now.
func (b *Backend) askAgain(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	req.Wait = false
	grant, err := b.ask(ctx, req, true)
	if errors.Is(err, backend.ErrHeld) {
		err = fmt.Errorf("acquire: the lease was granted and has ended since: %w", backend.ErrLost)
	}
	return grant, stillUnknown(err)
}

// stillUnknown marks the error of a request that follows one which was granted, or which left
// its place in the queue: the lease may be held, whatever the outcome of the last request.
func stillUnknown(err error) error {
	if away, ok := errors.AsType[*backend.UnavailableError](err); ok {
		away.MayHold = true
	}
	return err
}

// ask sends one request to acquire.
func (b *Backend) ask(ctx context.Context, req backend.AcquireRequest, waited bool) (backend.Grant, error) {
	body := wire.AcquireRequest{
		TTL: wire.Duration(req.TTL), Owner: req.Owner, Note: req.Note, Lease: string(req.Lease),
		Shared: req.Mode == backend.Shared, Limit: req.Limit, Permits: req.Permits,
	}
	c := call{op: "acquire", name: req.Name, method: http.MethodPost, path: lockPath(req.Name), in: body, limit: req.Limit, changes: true}
	if req.Wait {
		body.Wait = wire.Duration(b.poll)
		c.in, c.waits = body, b.poll
		c.header = http.Header{wire.HeaderKeepPlace: {keep.String()}}
	}
	var got wire.Grant
	c.out = &got
	asked := time.Now()
	answer, err := b.do(ctx, c)
	if err != nil {
		return backend.Grant{}, err
	}
	return b.granted(req, got, asked, waited || answer.Get(wire.HeaderWaited) != "")
}

// granted converts the answer to an acquire, which was sent after asked.
func (b *Backend) granted(req backend.AcquireRequest, got wire.Grant, asked time.Time, waited bool) (backend.Grant, error) {
	if got.Name != req.Name || got.Lease != string(req.Lease) || !got.Token.Valid() || got.TTL <= 0 {
		return backend.Grant{}, b.unavailable(wire.OpAcquire, true, errAnswer)
	}
	left := min(time.Duration(got.TTL), req.TTL)
	return backend.Grant{Token: got.Token, Asked: asked, Left: left, Since: got.ExpiresAt.Add(-req.TTL), Waited: waited}, nil
}

// Renew extends timed leases, with as many in one request as fit.
//
// Errors: *InvalidError, ErrUnsupported for a session, *UnavailableError when no request was
// answered, ErrClosed, ctx's cause. When some requests were answered the error is nil, and the
// errors of the others are in the result.
func (b *Backend) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	if err := req.Validate(b.caps); err != nil {
		return backend.RenewResult{}, err
	}
	res := backend.RenewResult{Leases: make([]backend.Renewal, 0, len(req.Leases))}
	var failed error
	for rest := req.Leases; len(rest) > 0; {
		chunk := rest[:fit(rest, maxChunk, refSize)]
		rest = rest[len(chunk):]
		got, err := b.renewChunk(ctx, chunk)
		if err != nil {
			if before, ok := errors.AsType[*backend.UnavailableError](failed); ok && before.MayHold {
				err = stillUnknown(err)
			}
			failed = err
			got = slices.Repeat([]backend.Renewal{{Err: err}}, len(chunk))
		}
		res.Leases = append(res.Leases, got...)
	}
	answered := slices.ContainsFunc(res.Leases, func(r backend.Renewal) bool {
		return r.Err == nil || errors.Is(r.Err, backend.ErrLost)
	})
	if failed != nil && !answered {
		return backend.RenewResult{}, failed
	}
	return res, nil
}

// maxChunk bounds the leases in one request to renew, below the bound of the server.
const maxChunk = 1000

// refSize returns the bytes that the lease takes in a request.
func refSize(l backend.TimedRenewal) int {
	const frame = len(`{"name":,"lease":"","ttl":""},`)
	quoted, err := json.Marshal(l.Name)
	if err != nil {
		return maxBytes
	}
	return frame + len(quoted) + len(l.Lease) + len(l.TTL.String())
}

func (b *Backend) renewChunk(ctx context.Context, leases []backend.TimedRenewal) ([]backend.Renewal, error) {
	body := wire.RenewManyRequest{Leases: make([]wire.LeaseRef, len(leases))}
	for i, l := range leases {
		body.Leases[i] = wire.LeaseRef{Name: l.Name, Lease: string(l.Lease), TTL: wire.Duration(l.TTL)}
	}
	var got wire.RenewManyResponse
	_, err := b.do(ctx, call{
		op: "renew", method: http.MethodPost, path: "/v1/leases/renew", in: body, out: &got, changes: true,
	})
	if err != nil {
		return nil, err
	}
	if len(got.Leases) != len(leases) {
		return nil, b.unavailable("renew", true, errAnswer)
	}
	out := make([]backend.Renewal, len(leases))
	for i, r := range got.Leases {
		switch {
		case r.Error != nil:
			out[i].Err = b.problem(call{op: "renew", name: leases[i].Name, changes: true}, *r.Error, nil)
		case r.Lease != string(leases[i].Lease) || r.Name != leases[i].Name || !r.Token.Valid():
			out[i].Err = b.unavailable("renew", true, errAnswer)
		default:
			out[i] = backend.Renewal{Token: r.Token, Left: atMost(time.Duration(r.TTL), leases[i].TTL)}
		}
	}
	return out, nil
}

// atMost bounds the time left by the TTL that was requested, if there was one.
func atMost(left, ttl time.Duration) time.Duration {
	if ttl == 0 {
		return left
	}
	return min(left, ttl)
}

// Release releases a lease, or its place in the queue. The server remembers the release of a
// lease that did not exist: it can never be granted afterwards.
//
// Errors: ErrLost if there is no such lease, unless req.Abandon is set; *InvalidError;
// *UnavailableError; ErrClosed; ctx's cause.
func (b *Backend) Release(ctx context.Context, req backend.ReleaseRequest) error {
	if err := req.Validate(); err != nil {
		return err
	}
	err := b.releaseOnce(ctx, req.Name, req.Lease)
	if err == nil && req.Abandon {
		// The lease existed, so the server does not remember its release: a request for it that
		// is still on its way must not be granted. The second release is answered with ErrLost.
		err = b.releaseOnce(ctx, req.Name, req.Lease)
	}
	if req.Abandon && errors.Is(err, backend.ErrLost) && !backend.IsCause(ctx, err) {
		return nil
	}
	return err
}

// Inspect returns the holders and the waiters of the lock. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	if err := backend.ValidateName(name); err != nil {
		return backend.LockInfo{}, err
	}
	var got wire.Lock
	answer, err := b.do(ctx, call{
		op: "inspect", name: name, method: http.MethodGet, path: lockPath(name), out: &got, header: withWaiterLeases(),
	})
	return got.Backend(clockOf(answer)), err
}

// List returns the locks that are held or waited for. Errors: *InvalidError, *UnavailableError,
// ErrClosed, ctx's cause.
func (b *Backend) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	if err := req.Validate(); err != nil {
		return backend.ListPage{}, err
	}
	q := queryOf("limit", strconv.Itoa(req.Size()), "prefix", req.Prefix, "after", req.After)
	var got wire.List
	answer, err := b.do(ctx, call{
		op: "list", method: http.MethodGet, path: "/v1/locks", query: q, out: &got, header: withWaiterLeases(),
	})
	page := backend.ListPage{Next: got.Next}
	for _, l := range got.Locks {
		page.Locks = append(page.Locks, l.Backend(clockOf(answer)))
	}
	return page, err
}

func withWaiterLeases() http.Header { return http.Header{wire.HeaderWaiterLeases: {"true"}} }

// Break takes the lock from its holders. Errors: *InvalidError, *UnavailableError, ErrClosed,
// ctx's cause.
func (b *Backend) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	if err := req.Validate(); err != nil {
		return backend.BreakResult{}, err
	}
	c := call{op: "break", name: req.Name, method: http.MethodDelete, path: lockPath(req.Name), changes: true}
	c.query = queryOf("lease", string(req.Lease), "reason", req.Reason)
	if req.Actor != "" {
		c.header = http.Header{wire.HeaderActor: {req.Actor}}
	}
	var got wire.Break
	c.out = &got
	answer, err := b.do(ctx, c)
	if _, known := errors.AsType[*backend.UnavailableError](err); !known && err != nil && ctx.Err() != nil {
		err = backend.PartDone(name, c.op, err) // the server may still execute it
	}
	return backend.BreakResult{Token: got.Token, Broken: wire.ToHolders(got.Broken, clockOf(answer))}, err
}

// clockOf returns the server's wall clock at the time of its answer.
func clockOf(answer http.Header) time.Time {
	t, err := time.Parse(time.RFC3339Nano, answer.Get(wire.HeaderTime))
	if err != nil {
		return time.Now()
	}
	return t
}
