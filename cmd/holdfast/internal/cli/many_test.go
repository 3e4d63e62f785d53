//go:build unix

package cli_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// holder is a client of the HTTP API with one connection, which holds one lock.
type holder struct {
	name  string
	lease backend.LeaseID
	base  string
	http  *http.Client

	dials  *atomic.Int64 // connections of all holders
	failed *atomic.Int64 // connections that were refused, or ended before the handshake
}

// newHolder returns a client. conf may be nil: plain HTTP.
func newHolder(t *testing.T, base, name string, conf *tls.Config, dials, failed *atomic.Int64) *holder {
	t.Helper()
	h := &holder{name: name, lease: backend.NewLeaseID(), base: base, dials: dials, failed: failed}
	transport := &http.Transport{MaxConnsPerHost: 1, IdleConnTimeout: time.Hour}
	connect := func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		conn, err := (&net.Dialer{Timeout: time.Minute}).DialContext(ctx, network, addr)
		if err == nil && conf != nil {
			secure := tls.Client(conn, conf)
			conn, err = secure, secure.HandshakeContext(ctx)
		}
		if err != nil && ctx.Err() == nil {
			failed.Add(1)
		}
		return conn, err
	}
	transport.DialContext, transport.DialTLSContext = connect, connect
	h.http = &http.Client{Transport: transport}
	t.Cleanup(transport.CloseIdleConnections)
	return h
}

// errGone is that of a lease which the server does not know any more.
var errGone = errors.New("the lease is gone")

// ask sends a request, without a body if that is nil. An answer other than 200 and 204 is an error.
func (h *holder) ask(ctx context.Context, method, path string, body any) ([]byte, error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, h.base+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := h.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return nil, err
	case res.StatusCode == http.StatusNotFound, res.StatusCode == http.StatusConflict, res.StatusCode == http.StatusGone:
		return nil, fmt.Errorf("%w: %s", errGone, answer)
	case res.StatusCode != http.StatusOK && res.StatusCode != http.StatusNoContent:
		return nil, fmt.Errorf("%s: %s", res.Status, answer)
	}
	return answer, nil
}

// call is ask for an answer that does not matter.
func (h *holder) call(ctx context.Context, method, path string, body any) error {
	_, err := h.ask(ctx, method, path, body)
	return err
}

// insist repeats a request, which names the lease and so may be repeated, until it succeeds or the lease is gone.
func (h *holder) insist(ctx context.Context, method, path string, body any) error {
	for {
		err := h.call(ctx, method, path, body)
		if err == nil || errors.Is(err, errGone) || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (h *holder) acquire(ctx context.Context, ttl time.Duration) error {
	return h.insist(ctx, http.MethodPost, h.path(), map[string]any{"lease": h.lease, "ttl": ttl.String(), "owner": "holder"})
}

// once acquires the lock with one request.
func (h *holder) once(ctx context.Context) error {
	return h.call(ctx, http.MethodPost, h.path(), map[string]any{"lease": h.lease})
}

func (h *holder) path() string { return "/v1/locks/" + url.PathEscape(h.name) }

func (h *holder) renew(ctx context.Context, ttl time.Duration) error {
	return h.insist(ctx, http.MethodPut, h.path()+"/leases/"+string(h.lease), map[string]any{"ttl": ttl.String()})
}

// keep renews the lease every third of its TTL until stop is closed. It returns an error if the lease was lost.
func (h *holder) keep(ctx context.Context, ttl time.Duration, stop <-chan struct{}) error {
	tick := time.NewTicker(ttl / 3)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return h.renew(ctx, ttl)
		case <-tick.C:
			if err := h.renew(ctx, ttl); err != nil {
				return err
			}
		}
	}
}
