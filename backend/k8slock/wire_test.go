package k8slock_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
)

// wire is the transport of one backend value to the server.
type wire struct {
	next http.RoundTripper

	mu    sync.Mutex
	judge func(*http.Request) fate // determines the fate of a request; nil: it passes
	count map[string]int           // requests by method, except watches
}

type fate int

const (
	passes fate = iota
	replyLost
	isLate // it is sent when late is closed, and the caller is told immediately that it failed
	isRefused
)

var errWire = errors.New("the wire is cut")

func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	w.mu.Lock()
	f := passes
	if w.judge != nil {
		f = w.judge(req)
	}
	if !strings.Contains(req.URL.RawQuery, "watch=1") {
		w.count[req.Method]++
	}
	w.mu.Unlock()
	switch f {
	case replyLost:
		res, err := w.next.RoundTrip(req)
		if err == nil {
			_ = res.Body.Close()
		}
		return nil, errors.Join(errWire, err)
	case isRefused:
		return &http.Response{
			StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"7"}}, Request: req,
			Body: io.NopCloser(strings.NewReader(`{"message":"too many"}`)),
		}, nil
	case isLate:
		return nil, errWire
	case passes:
	}
	return w.next.RoundTrip(req)
}

// set determines the fate of requests from now on.
func (w *wire) set(judge func(*http.Request) fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge = judge
}

// counted returns the requests since the last call.
func (w *wire) counted() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.count
	w.count = make(map[string]int)
	return c
}

// once applies to the first request with the method on an object whose name has that prefix.
func once(method, object string, f fate) func(*http.Request) fate {
	done := false
	return func(req *http.Request) fate {
		_, name, _ := strings.Cut(req.URL.Path, "/leases")
		if done || req.Method != method || !strings.HasPrefix(name, "/"+object) {
			return passes
		}
		done = true
		return f
	}
}
