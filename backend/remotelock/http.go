package remotelock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// call is one request.
type call struct {
	op, name string // for error texts
	limit    int    // that is requested, for error texts
	// The transport repeats a GET whose connection ends. It must not repeat another method: the
	// error of the last attempt would hide that the first one may have worked.
	method  string
	path    string // escaped
	query   url.Values
	header  http.Header
	in, out any
	waits   time.Duration // how long the server may delay the answer
	changes bool          // it changes leases: without an answer, the outcome is unknown
	refusal *wire.Problem // receives the server's refusal; nil: not wanted
}

// errHTTPS is the answer of a server that was sent plain text.
var errHTTPS = errors.New("the server answered: " + connect.HTTPToTLS)

// maxAnswer bounds the bytes that are read of an answer.
const maxAnswer = 64 << 20

// do sends the request and decodes the answer. The error is one of package backend, or the
// cause of the end of ctx.
func (b *Backend) do(ctx context.Context, c call) (http.Header, error) {
	ctx, done, err := backend.Begin(ctx, b.life)
	if err != nil {
		return nil, err
	}
	defer done()
	within, cancel := context.WithTimeout(ctx, c.waits+answerIn)
	defer cancel()
	res, err := b.send(within, c)
	if err != nil {
		return nil, b.failed(ctx, c, err)
	}
	defer res.Body.Close() //nolint:errcheck // it was read, or is abandoned
	return res.Header, b.answer(ctx, c, res)
}

// answer reads and decodes the answer to a request.
func (b *Backend) answer(ctx context.Context, c call, res *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return b.failed(ctx, c, err)
	}
	return b.decode(c, res, body)
}

func (b *Backend) decode(c call, res *http.Response, body []byte) error {
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		if c.out == nil {
			return nil
		}
		if err := json.Unmarshal(body, c.out); err != nil {
			return b.unavailable(c.op, c.changes, errAnswer)
		}
		return nil
	}
	if res.StatusCode == http.StatusBadRequest && bytes.Contains(body, []byte(connect.HTTPToTLS)) {
		return b.unavailable(c.op, false, errHTTPS)
	}
	var p wire.Problem
	if kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err == nil && kind == wire.ContentTypeProblem {
		if err := json.Unmarshal(body, &p); err != nil {
			return b.unavailable(c.op, c.changes, errAnswer)
		}
	}
	p.Status = res.StatusCode
	if c.refusal != nil {
		*c.refusal = p
	}
	return b.problem(c, p, res.Header)
}

// queryOf returns the parameters that have a value. pairs are names, each before its value.
func queryOf(pairs ...string) url.Values {
	q := url.Values{}
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			q.Set(pair[0], pair[1])
		}
	}
	return q
}

func (b *Backend) request(ctx context.Context, e *endpoint, c call) (*http.Request, error) {
	var body io.Reader
	if c.in != nil {
		encoded, err := json.Marshal(c.in)
		if err != nil {
			return nil, err //nolint:wrapcheck // failed maps it
		}
		body = bytes.NewReader(encoded)
	}
	to := e.base.String() + c.path
	if len(c.query) > 0 {
		to += "?" + c.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, c.method, to, body)
	if err != nil {
		return nil, err //nolint:wrapcheck // failed maps it
	}
	maps.Copy(req.Header, c.header)
	if c.in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if id := b.servers.storeID(); id != "" {
		req.Header.Set(wire.HeaderStore, id)
	}
	bearer, err := b.token.get()
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	return req, err
}

func (b *Backend) unavailable(op string, mayHold bool, err error) error {
	return &backend.UnavailableError{Backend: name, Op: op, MayHold: mayHold, Err: connect.Refused(name, err, "")}
}
