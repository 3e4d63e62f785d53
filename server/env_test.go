package server_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

func TestMain(m *testing.M) {
	flag.Parse()
	const parallel = "8" // most tests wait for a time-out, and need no processor
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	leaktest.Main(m)
}

// patience bounds events that have to happen soon, on a busy machine.
const patience = time.Minute

// faulty is a real backend that can be disconnected.
type faulty struct {
	backend.Backend
	away   atomic.Bool
	until  atomic.Pointer[time.Time] // in quarantine until then
	opened atomic.Int64              // opened sessions
	freed  atomic.Int64              // calls of Release
}

var errAway = errors.New("cut off by the test")

func (f *faulty) fault(op string) error {
	if f.away.Load() {
		return &backend.UnavailableError{Backend: "memory", Op: op, MayHold: true, Err: errAway}
	}
	return nil
}

func (f *faulty) Quarantined(context.Context) error {
	until := f.until.Load()
	if until == nil || time.Until(*until) <= 0 {
		return nil
	}
	q := &backend.QuarantineError{Backend: "memory", Reason: "it is a test", Left: time.Until(*until), Until: *until, Parameter: "quarantine=off"}
	return q.Unavailable("memory", "acquire", false)
}

func (f *faulty) OpenSession(ctx context.Context, r backend.SessionRequest) error {
	f.opened.Add(1)
	if err := f.fault("open session"); err != nil {
		return err
	}
	return f.Backend.OpenSession(ctx, r)
}

func (f *faulty) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	if err := f.fault("acquire"); err != nil {
		return backend.Grant{}, err
	}
	if err := f.Quarantined(ctx); err != nil {
		return backend.Grant{}, err
	}
	return f.Backend.Acquire(ctx, r)
}

func (f *faulty) Renew(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
	if err := f.fault("renew"); err != nil {
		return backend.RenewResult{}, err
	}
	return f.Backend.Renew(ctx, r)
}

func (f *faulty) Release(ctx context.Context, r backend.ReleaseRequest) error {
	f.freed.Add(1)
	if err := f.fault("release"); err != nil {
		return err
	}
	return f.Backend.Release(ctx, r)
}

func (f *faulty) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	if err := f.fault("inspect"); err != nil {
		return backend.LockInfo{}, err
	}
	return f.Backend.Inspect(ctx, name)
}

func (f *faulty) List(ctx context.Context, r backend.ListRequest) (backend.ListPage, error) {
	if err := f.fault("list"); err != nil {
		return backend.ListPage{}, err
	}
	return f.Backend.List(ctx, r)
}

func (f *faulty) Break(ctx context.Context, r backend.BreakRequest) (backend.BreakResult, error) {
	if err := f.fault("break"); err != nil {
		return backend.BreakResult{}, err
	}
	return f.Backend.Break(ctx, r)
}

// api is a server on a port of its own, and a client of it.
type api struct {
	t    *testing.T
	base string
	b    *faulty
	srv  *server.Server
	stop func() error // ends Serve and returns its error
	http *http.Client
}

// start serves a store of its own.
func start(t *testing.T, cfg server.Config) *api {
	t.Helper()
	return startOn(t, memlock.NewStore(), cfg)
}

func startOn(t *testing.T, store *memlock.Store, cfg server.Config) *api {
	t.Helper()
	return serve(t, &faulty{Backend: store.Open()}, cfg)
}

func serve(t *testing.T, b *faulty, cfg server.Config) *api {
	t.Helper()
	srv, err := server.New(b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, ln) }()
	a := &api{t: t, base: "http://" + ln.Addr().String(), b: b, srv: srv, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	stopped := false
	a.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}
	t.Cleanup(func() {
		a.http.CloseIdleConnections()
		if err := a.stop(); err != nil {
			t.Errorf("Serve: %v", err)
		}
		if err := b.Close(); err != nil {
			t.Errorf("close the backend: %v", err)
		}
	})
	return a
}

// virtual runs a test in virtual time: requests go to the handler of a server, without a network.
func virtual(t *testing.T, open func() *faulty, cfg server.Config, test func(t *testing.T, a *api)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := open()
		srv, err := server.New(b, cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(srv.Close(context.WithoutCancel(t.Context())), b.Close()); err != nil {
				t.Log(err) // the backend of the test does not answer
			}
		})
		test(t, &api{t: t, base: "http://127.0.0.1", b: b, srv: srv, http: &http.Client{Transport: handled{srv}}})
	})
}

// inMemory returns a store of its own.
func inMemory() *faulty { return &faulty{Backend: memlock.NewStore().Open()} }

// handled is a transport that calls a handler.
type handled struct{ http.Handler }

// RoundTrip returns when the handler does, which sees the end of the request's context.
func (h handled) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	in := r.Clone(r.Context())
	in.Host, in.RemoteAddr, in.RequestURI = cmp.Or(r.Host, r.URL.Host), "127.0.0.1:1", r.URL.RequestURI()
	h.ServeHTTP(w, in)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

// answer is the answer to a request.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a *api) do(ctx context.Context, method, path, body string, header ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	res, err := a.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, b}, err
}

// call sends a request that has to be answered.
func (a *api) call(method, path, body string, header ...string) answer {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), 2*patience)
	defer cancel()
	got, err := a.do(ctx, method, path, body, header...)
	if err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
	return got
}

// want sends a request that has to be answered with the status, and decodes the answer.
func want[T any](a *api, status int, method, path, body string, header ...string) T {
	a.t.Helper()
	got := a.call(method, path, body, header...)
	if got.status != status {
		a.t.Fatalf("%s %s %s: status %d, want %d: %s", method, path, body, got.status, status, got.body)
	}
	return decode[T](a.t, got)
}

func decode[T any](t *testing.T, got answer) T {
	t.Helper()
	var v T
	dec := json.NewDecoder(bytes.NewReader(got.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("decode %s: %v", got.body, err)
	}
	return v
}

func lockPath(name string) string { return "/v1/locks/" + url.PathEscape(name) }

func (a *api) take(name, body string) wire.Grant {
	a.t.Helper()
	return want[wire.Grant](a, 200, "POST", lockPath(name), body)
}

func (a *api) inspect(name string) wire.Lock {
	a.t.Helper()
	return want[wire.Lock](a, 200, "GET", lockPath(name), "", wire.HeaderWaiterLeases, "true")
}

func (a *api) release(name, lease string, status int) {
	a.t.Helper()
	if got := a.call("DELETE", lockPath(name)+"/leases/"+lease, ""); got.status != status {
		a.t.Fatalf("release: status %d, want %d: %s", got.status, status, got.body)
	}
}

func (a *api) waiters(name string, n int) {
	a.t.Helper()
	leasetest.Eventually(a.t, "the queue has the right length", func() bool { return len(a.inspect(name).Waiters) == n })
}

// later is a request in progress.
type later struct {
	done   chan struct{}
	cancel context.CancelFunc
	answer answer
	err    error
}

// send sends a request and does not wait for the answer.
func (a *api) send(method, path, body string, header ...string) *later {
	ctx, cancel := context.WithCancel(context.Background())
	l := &later{done: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(l.done)
		l.answer, l.err = a.do(ctx, method, path, body, header...)
	}()
	a.t.Cleanup(func() { cancel(); <-l.done })
	return l
}

func (l *later) get(t *testing.T) answer {
	t.Helper()
	select {
	case <-l.done:
	case <-time.After(patience):
		t.Fatal("no answer")
	}
	if l.err != nil {
		t.Fatal(l.err)
	}
	return l.answer
}

func decodeQuietly(got answer) wire.Problem {
	var p wire.Problem
	if json.Unmarshal(got.body, &p) != nil {
		return wire.Problem{}
	}
	return p
}

// half sends the head of a request and a part of its body.
func (a *api) half(method, path string) answer {
	a.t.Helper()
	c := dial(a.t, a)
	if _, err := io.WriteString(c, method+" "+path+" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{"); err != nil {
		a.t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		a.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, b}
}
