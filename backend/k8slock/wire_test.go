package k8slock_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// handler answers a request. next sends it to the server.
type handler = func(req *http.Request, next http.RoundTripper) (*http.Response, error)

// wire is the transport of one backend value to the server.
type wire struct {
	next http.RoundTripper

	mu    sync.Mutex
	on    handler        // nil: requests pass
	count map[string]int // requests by method, except watches
}

var errWire = errors.New("the wire is cut")

func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	w.mu.Lock()
	on := w.on
	if !isWatch(req) {
		w.count[req.Method]++
	}
	w.mu.Unlock()
	if on == nil {
		return w.next.RoundTrip(req)
	}
	return on(req, w.next)
}

// set determines what answers requests from now on.
func (w *wire) set(on handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on = on
}

// counted returns the requests since the last call.
func (w *wire) counted() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.count
	w.count = make(map[string]int)
	return c
}

func isWatch(req *http.Request) bool { return strings.Contains(req.URL.RawQuery, "watch=1") }

// object returns the name of the Lease that a request is about; empty: none, or all.
func object(req *http.Request) string {
	_, name, _ := strings.Cut(req.URL.Path, "/leases/")
	return name
}

// once has h answer the first request with the method on an object whose name has that prefix.
func once(method, prefix string, h handler) handler {
	var done atomic.Bool
	return func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
		if req.Method == method && strings.HasPrefix(object(req), prefix) && !done.Swap(true) {
			return h(req, next)
		}
		return next.RoundTrip(req)
	}
}

// replyLost sends the request, and loses the reply.
func replyLost(req *http.Request, next http.RoundTripper) (*http.Response, error) {
	res, err := next.RoundTrip(req)
	if err == nil {
		_ = res.Body.Close()
	}
	return nil, errors.Join(errWire, err)
}

// cutOff sends nothing.
func cutOff(*http.Request, http.RoundTripper) (*http.Response, error) { return nil, errWire }

func answer(req *http.Request, status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: make(http.Header), Request: req, Body: io.NopCloser(strings.NewReader(body))}
}

// delayed keeps the next write to an object with this name or prefix back, and has its caller told that it failed.
// The function sends it, and returns the status of the answer.
func (p *process) delayed(prefix string) func() int {
	var late *http.Request
	var body []byte
	p.wire.set(once(http.MethodPut, prefix, func(req *http.Request, _ http.RoundTripper) (*http.Response, error) {
		late = req.Clone(context.WithoutCancel(req.Context()))
		body, _ = io.ReadAll(req.Body)
		return nil, errWire
	}))
	return func() int {
		late.Body = io.NopCloser(strings.NewReader(string(body)))
		res, err := p.wire.next.RoundTrip(late)
		if err != nil {
			p.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
}

// earless is a watch that delivers nothing any more, and does not end.
type earless struct {
	io.ReadCloser

	done <-chan struct{}
}

func (e earless) Read([]byte) (int, error) {
	<-e.done
	return 0, io.EOF
}

// deaf makes the first watch fall silent, or each.
func deaf(each bool) handler {
	var heard atomic.Bool
	return func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
		res, err := next.RoundTrip(req)
		if err == nil && isWatch(req) && (!heard.Swap(true) || each) {
			res.Body = earless{res.Body, req.Context().Done()}
		}
		return res, err
	}
}

// anHourAhead is the way to an API server whose clock is an hour ahead.
func anHourAhead(req *http.Request, next http.RoundTripper) (*http.Response, error) {
	res, err := next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if at, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		res.Header.Set("Date", at.Add(time.Hour).Format(http.TimeFormat))
	}
	return res, nil
}
