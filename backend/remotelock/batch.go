package remotelock

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"runtime"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// outcome is the result of an item that was sent in a batch.
type outcome struct {
	alone   bool     // nothing was done: the caller has to send its own request
	request *pending // with alone: to be finished when the caller has its answer; may be nil
	got     wire.BatchResult
	asked   time.Time // from before the request was sent
	err     error     // of package backend, or the cause of the end of the caller's context
}

// first sends the first request of an acquire. It is sent in a batch, unless the acquire would
// wait in the queue or no other request is in progress.
func (b *Backend) first(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	crowded, answered := b.together.asks(req.Name)
	defer answered()
	var o outcome
	if crowded && req.Wait {
		o.alone = true
	} else {
		o = b.share(ctx, func() *item { return acquireItem(req) })
		defer o.finish()
	}
	if !o.alone {
		grant, err := b.granted(req, o)
		if !req.Wait || !errors.Is(err, backend.ErrHeld) {
			return grant, err
		}
		b.together.saw(req.Name, true)
	}
	grant, err := b.ask(ctx, req, false)
	if held := errors.Is(err, backend.ErrHeld); req.Wait && (err == nil || held) {
		b.together.saw(req.Name, held || grant.Waited)
	}
	return grant, err
}

// releaseOnce sends one request for a release, in a batch or alone.
func (b *Backend) releaseOnce(ctx context.Context, name string, lease backend.LeaseID) error {
	o := b.share(ctx, func() *item { return releaseItem(name, lease) })
	defer o.finish()
	if !o.alone {
		return o.err
	}
	_, err := b.do(ctx, call{op: wire.OpRelease, name: name, method: http.MethodDelete, path: leasePath(name, lease), changes: true})
	return err
}

// share sends an operation in a batch, or reports that the caller has to send it alone.
func (b *Backend) share(ctx context.Context, it func() *item) outcome {
	if b.together.off() {
		return outcome{alone: true}
	}
	if f := b.together.alone(); f != nil {
		return outcome{alone: true, request: f}
	}
	if err := b.enter(); err != nil {
		return outcome{err: err}
	}
	defer b.work.Done()
	if ctx.Err() != nil {
		return outcome{err: context.Cause(ctx)}
	}
	one := it()
	if f := b.together.enqueue(one); f != nil {
		return outcome{alone: true, request: f}
	}
	return b.together.ride(ctx, one)
}

// finish lets the queued items be sent.
func (o outcome) finish() {
	if o.request != nil {
		o.request.finish()
	}
}

func acquireItem(req backend.AcquireRequest) *item {
	it := &item{op: wire.OpAcquire, name: req.Name, lease: req.Lease, acquire: req}
	it.size = itemSize(it)
	return it
}

func releaseItem(name string, lease backend.LeaseID) *item {
	it := &item{op: wire.OpRelease, name: name, lease: lease}
	it.size = itemSize(it)
	return it
}

// itemSize returns an upper bound for the bytes that the item takes in a request: a byte of a
// text may become six of JSON.
func itemSize(it *item) int {
	const frame = len(`{"name":"","lease":"","ttl":"2562047h47m16.854775807s","owner":"","shared":true,"limit":1048576,"permits":1048576,"note":""},`)
	return frame + len(it.lease) + 6*(len(it.name)+len(it.acquire.Owner)+len(it.acquire.Note))
}

// granted converts the outcome to a grant.
func (b *Backend) granted(req backend.AcquireRequest, o outcome) (backend.Grant, error) {
	if o.err != nil {
		if limit, ok := errors.AsType[*backend.LimitError](o.err); ok {
			limit.Asked = req.Limit
		}
		return backend.Grant{}, o.err
	}
	return backend.Grant{
		Token: o.got.Token, Asked: o.asked, Left: min(time.Duration(o.got.TTL), req.TTL), Since: o.got.ExpiresAt.Add(-req.TTL),
	}, nil
}

// sendBatch sends the items in one request, and passes on the results as they arrive.
func (b *Backend) sendBatch(f *pending, batch []*item) {
	defer f.finish()
	open := newManifest(batch)
	ctx, cancel := context.WithTimeout(b.life, answerIn)
	defer cancel()
	open.asked = time.Now()
	res, err := b.send(ctx, call{method: http.MethodPost, path: "/v1/leases/batch", in: open.request()})
	if err != nil {
		open.rest(func(it *item) outcome { return outcome{err: b.failed(b.life, it.call(), err)} })
		return
	}
	defer res.Body.Close() //nolint:errcheck // it was read, or is abandoned
	if res.StatusCode != http.StatusOK {
		b.refused(open, res)
		return
	}
	err = b.parseLines(open, io.LimitReader(res.Body, maxAnswer), f.finish)
	open.rest(func(it *item) outcome { return outcome{err: b.failed(b.life, it.call(), err)} })
}

func (it *item) call() call { return call{op: it.op, name: it.name, changes: true} }

// refused handles an answer that refuses the whole batch. A server that does not know the call,
// accepts only a smaller one, or does not allow it, has done nothing: every caller sends its
// own request, and gets the error there if it persists.
func (b *Backend) refused(open *manifest, res *http.Response) {
	switch s := res.StatusCode; {
	case s == http.StatusRequestTimeout, s == http.StatusTooManyRequests:
	case s >= 400 && s < 500, s == http.StatusNotImplemented:
		b.together.turnOff()
		open.rest(func(*item) outcome { return outcome{alone: true} })
		return
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	open.rest(func(it *item) outcome {
		if err != nil {
			return outcome{err: b.failed(b.life, it.call(), err)}
		}
		if err := b.decode(it.call(), res, body); err != nil {
			return outcome{err: err}
		}
		return outcome{err: b.unavailable(it.op, true, errAnswer)} // 2xx, but not an answer of the server
	})
}

// parseLines reads the lines of an answer until all items have a result, or the answer ends.
// heard is called when a part of the results has been passed on.
func (b *Backend) parseLines(open *manifest, body io.Reader, heard func()) error {
	r := bufio.NewReaderSize(body, 16<<10)
	for open.left > 0 {
		line, err := readLine(r)
		if err != nil { // a line without an end is none
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		var got wire.BatchResult
		if err := json.Unmarshal(line, &got); err != nil {
			return errAnswer
		}
		it := open.take(got)
		if it == nil {
			return errAnswer
		}
		it.done <- b.outcome(it, got, open.asked)
		if r.Buffered() == 0 {
			// Let the callers that have their results queue their next requests first, so that
			// the next batch has all of them.
			runtime.Gosched()
			heard()
		}
	}
	_, _ = io.Copy(io.Discard, r) // so that the connection can be reused
	return nil
}

// readLine returns the next line, which is valid until the next call.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err //nolint:wrapcheck // failed maps it
	}
	var long []byte
	for errors.Is(err, bufio.ErrBufferFull) {
		long = append(long, line...)
		line, err = r.ReadSlice('\n')
	}
	return append(long, line...), err
}

// outcome converts a result to the outcome of its item.
func (b *Backend) outcome(it *item, got wire.BatchResult, asked time.Time) outcome {
	switch {
	case got.Error != nil:
		header := http.Header{}
		if !got.Time.IsZero() {
			header.Set(wire.HeaderTime, wire.FormatTime(got.Time.Time))
		}
		return outcome{err: b.problem(it.call(), *got.Error, header)}
	case it.op == wire.OpAcquire && (!got.Token.Valid() || got.TTL <= 0):
		return outcome{err: b.unavailable(it.op, true, errAnswer)}
	}
	return outcome{got: got, asked: asked}
}

// manifest has the items of one request that have no result yet.
type manifest struct {
	acquires, releases []*item // nil: it has its result
	left               int
	asked              time.Time
}

func newManifest(batch []*item) *manifest {
	m := &manifest{left: len(batch)}
	for _, it := range batch {
		if it.op == wire.OpAcquire {
			m.acquires = append(m.acquires, it)
		} else {
			m.releases = append(m.releases, it)
		}
	}
	return m
}

// request returns the request body for the items.
func (m *manifest) request() wire.BatchRequest {
	req := wire.BatchRequest{Acquire: make([]wire.BatchAcquire, len(m.acquires)), Release: make([]wire.BatchRelease, len(m.releases))}
	for i, it := range m.acquires {
		a := it.acquire
		req.Acquire[i] = wire.BatchAcquire{
			Name: a.Name, Lease: string(a.Lease), TTL: wire.Duration(a.TTL), Owner: a.Owner, Note: a.Note,
			Shared: a.Mode == backend.Shared, Limit: a.Limit, Permits: a.Permits,
		}
	}
	for i, it := range m.releases {
		req.Release[i] = wire.BatchRelease{Name: it.name, Lease: string(it.lease)}
	}
	return req
}

// take returns and removes the item that the result is for. It returns nil if there is no such
// item, or it already has its result: then no part of the answer can be trusted.
func (m *manifest) take(got wire.BatchResult) *item {
	list := m.releases
	if got.Op == wire.OpAcquire {
		list = m.acquires
	} else if got.Op != wire.OpRelease {
		return nil
	}
	if got.Item < 0 || got.Item >= len(list) {
		return nil
	}
	it := list[got.Item]
	if it == nil || it.name != got.Name || string(it.lease) != got.Lease {
		return nil
	}
	list[got.Item] = nil
	m.left--
	return it
}

// rest gives every item without a result the outcome that f returns.
func (m *manifest) rest(f func(*item) outcome) {
	for _, list := range [][]*item{m.acquires, m.releases} {
		for i, it := range list {
			if it != nil {
				list[i] = nil
				it.done <- f(it)
			}
		}
	}
	m.left = 0
}
