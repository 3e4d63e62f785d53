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
	grant   backend.Grant
	err     error // of package backend, or the cause of the end of the caller's context
}

// first sends the first request of an acquire. It is sent in a batch, unless the acquire would
// wait in the queue or no other request is in progress.
func (b *Backend) first(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	crowded, answered := b.together.asks(req.Name)
	defer answered()
	o := outcome{alone: true}
	if !crowded || !req.Wait {
		o = b.share(ctx, wire.OpAcquire, req)
		defer o.request.finish()
	}
	if !o.alone {
		if !req.Wait || !errors.Is(o.err, backend.ErrHeld) {
			return o.grant, o.err
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
	o := b.share(ctx, wire.OpRelease, backend.AcquireRequest{Name: name, Lease: lease})
	defer o.request.finish()
	if !o.alone {
		return o.err
	}
	_, err := b.do(ctx, call{op: wire.OpRelease, name: name, method: http.MethodDelete, path: leasePath(name, lease), changes: true})
	return err
}

// share sends an operation in a batch, or reports that the caller has to send it alone.
func (b *Backend) share(ctx context.Context, op string, req backend.AcquireRequest) outcome {
	ctx, done, err := backend.Begin(ctx, b.life)
	if err != nil {
		return outcome{err: err}
	}
	defer done()
	it, alone := b.together.enqueue(op, req)
	if it == nil {
		return outcome{alone: true, request: alone}
	}
	select {
	case o := <-it.done:
		return o
	case <-ctx.Done():
	}
	b.together.forget(it)
	select {
	case unwanted := <-it.done:
		unwanted.request.finish()
	default:
	}
	return outcome{err: context.Cause(ctx)}
}

// sendBatch sends the items in one request, and passes on the results as they arrive.
func (b *Backend) sendBatch(f *pending, batch []*item) {
	defer f.finish()
	open := newManifest(batch)
	ctx, cancel := context.WithTimeout(b.life, answerIn)
	defer cancel()
	open.asked = time.Now()
	res, err := b.send(ctx, call{method: http.MethodPost, path: "/v1/leases/batch", in: open.request})
	var refusal []byte
	if err == nil {
		defer res.Body.Close() //nolint:errcheck // it was read, or is abandoned
		switch {
		case res.StatusCode == http.StatusOK:
			err = b.parseLines(open, io.LimitReader(res.Body, maxAnswer), f.finish)
		case knowsNoBatch(res.StatusCode): // every caller sends its own request, and gets the error there if it persists
			b.together.turnOff()
			open.rest(func(*item) outcome { return outcome{alone: true} })
		default:
			refusal, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer))
		}
	}
	open.rest(func(it *item) outcome {
		if err != nil {
			return outcome{err: b.failed(b.life, it.call(), err)}
		}
		if err := b.decode(it.call(), res, refusal); err != nil {
			return outcome{err: err}
		}
		return outcome{err: b.unavailable(it.op, true, errAnswer)} // 2xx, but not an answer of the server
	})
}

// knowsNoBatch reports whether the server does not know the call, accepts only a smaller one, or does not allow
// it. It has done nothing.
func knowsNoBatch(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status < 500 || status == http.StatusNotImplemented
}

// parseLines reads the lines of an answer until all items have a result, or the answer ends.
// heard is called when a part of the results has been passed on.
func (b *Backend) parseLines(open *manifest, body io.Reader, heard func()) error {
	r := bufio.NewReaderSize(body, 16<<10)
	for len(open.items) > 0 {
		line, err := r.ReadBytes('\n')
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

// outcome converts a result to the outcome of its item.
func (b *Backend) outcome(it *item, got wire.BatchResult, asked time.Time) outcome {
	if got.Error != nil {
		header := http.Header{}
		if !got.Time.IsZero() {
			header.Set(wire.HeaderTime, wire.FormatTime(got.Time.Time))
		}
		return outcome{err: b.problem(it.call(), *got.Error, header)}
	}
	if it.op == wire.OpRelease {
		return outcome{}
	}
	grant, err := b.granted(it.req, wire.Grant{Name: got.Name, Lease: got.Lease, Token: got.Token, TTL: got.TTL, ExpiresAt: got.ExpiresAt}, asked, false)
	return outcome{grant: grant, err: err}
}

// manifest has the items of one request that have no result yet.
type manifest struct {
	request wire.BatchRequest
	items   map[place]*item
	asked   time.Time // from before the request was sent
}

// place is where an item is in a request: the list, and the index in it.
type place struct {
	op    string
	index int
}

func newManifest(batch []*item) *manifest {
	m := &manifest{items: make(map[place]*item, len(batch))}
	for _, it := range batch {
		r := it.req
		if it.op == wire.OpRelease {
			m.items[place{it.op, len(m.request.Release)}] = it
			m.request.Release = append(m.request.Release, wire.BatchRelease{Name: r.Name, Lease: string(r.Lease)})
			continue
		}
		m.items[place{it.op, len(m.request.Acquire)}] = it
		m.request.Acquire = append(m.request.Acquire, wire.BatchAcquire{
			Name: r.Name, Lease: string(r.Lease), TTL: wire.Duration(r.TTL), Owner: r.Owner, Note: r.Note,
			Shared: r.Mode == backend.Shared, Limit: r.Limit, Permits: r.Permits,
		})
	}
	return m
}

// take returns and removes the item that the result is for. It returns nil if there is no such
// item, or it already has its result: then no part of the answer can be trusted.
func (m *manifest) take(got wire.BatchResult) *item {
	at := place{got.Op, got.Item}
	it := m.items[at]
	if it == nil || it.req.Name != got.Name || string(it.req.Lease) != got.Lease {
		return nil
	}
	delete(m.items, at)
	return it
}

// rest gives every item without a result the outcome that f returns.
func (m *manifest) rest(f func(*item) outcome) {
	for _, it := range m.items {
		it.done <- f(it)
	}
	clear(m.items)
}
