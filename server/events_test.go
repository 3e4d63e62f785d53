package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

// sse is an event stream that is being read.
type sse struct {
	lines  chan string // closed at the end of the stream
	cancel context.CancelFunc
	header http.Header
}

// listen opens an event stream and reads it.
func listen(t *testing.T, a *api, path string, header ...string) *sse {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := a.http.Do(req)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	s := &sse{lines: make(chan string, 10_000), cancel: cancel, header: res.Header}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(s.lines)
		defer res.Body.Close()
		for scan := bufio.NewScanner(res.Body); scan.Scan(); {
			s.lines <- scan.Text()
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return s
}

// line returns the next line; false at the end of the stream.
func (s *sse) line(t *testing.T) (string, bool) {
	t.Helper()
	select {
	case l, ok := <-s.lines:
		return l, ok
	case <-time.After(patience):
		t.Fatal("the stream says nothing")
		return "", false
	}
}

// event returns the next event and its data.
func (s *sse) event(t *testing.T) (string, string) {
	t.Helper()
	kind := ""
	for {
		l, ok := s.line(t)
		if !ok {
			return "", ""
		}
		if v, ok := strings.CutPrefix(l, "event: "); ok {
			kind = v
		}
		if v, ok := strings.CutPrefix(l, "data: "); ok {
			return kind, v
		}
	}
}

// next returns the next event, which has to be of the kind.
func (s *sse) next(t *testing.T, kind string) wire.Event {
	t.Helper()
	got, data := s.event(t)
	if got != kind {
		t.Fatalf("event %q %s, want %q", got, data, kind)
	}
	var e wire.Event
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestEvents(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	all, some := listen(t, a, "/v1/events"), listen(t, a, "/v1/events?prefix=b%2F")
	all.next(t, "watching")
	some.next(t, "watching")
	if ct := all.header.Get("Content-Type"); ct != "text/event-stream" {
		t.Errorf("Content-Type %q", ct)
	}
	g := a.take("a/1", `{"owner":"w1"}`)
	if e := all.next(t, "acquired"); e.Name != "a/1" || e.Owner != "w1" || e.Token != g.Token || e.Lease != g.Lease || e.At.IsZero() {
		t.Errorf("acquired %+v", e)
	}
	w := a.send("POST", lockPath("a/1"), `{"wait":"60s","owner":"w2"}`)
	if e := all.next(t, "waiting"); e.Owner != "w2" {
		t.Errorf("waiting %+v", e)
	}
	a.release("a/1", g.Lease, 204)
	all.next(t, "released")
	all.next(t, "acquired")
	h := decode[wire.Grant](t, w.get(t))
	want[wire.Break](a, 200, "DELETE", lockPath("a/1")+"?reason=why", "")
	if e := all.next(t, "broken"); e.Reason != "why" || e.Lease != h.Lease {
		t.Errorf("broken %+v", e)
	}
	a.take("b/1", `{"ttl":"1s"}`)
	if e := some.next(t, "acquired"); e.Name != "b/1" {
		t.Errorf("with a prefix: %+v", e)
	}
	if e := some.next(t, "expired"); e.Name != "b/1" {
		t.Errorf("with a prefix: %+v", e)
	}
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Heartbeat: 20 * time.Millisecond})
	s := listen(t, a, "/v1/events")
	for beats := 0; beats < 3; {
		if l, ok := s.line(t); !ok {
			t.Fatal("the stream ended")
		} else if l == ": beat" {
			beats++
		}
	}
}

// A stream outlives the time-out for reading a request.
func TestLongStream(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const readTime = 4 * time.Second // enough for a request on a busy machine
	a := start(t, server.Config{Heartbeat: 50 * time.Millisecond, Limits: server.Limits{ReadTimeout: readTime, ReadHeaderTimeout: readTime}})
	s := listen(t, a, "/v1/events")
	g := a.take("x", `{}`)
	poll := a.send("POST", lockPath("x"), `{"wait":"60s"}`)
	for begun := time.Now(); time.Since(begun) < 2*readTime; {
		if _, ok := s.line(t); !ok {
			t.Fatal("the stream ended")
		}
	}
	a.waiters("x", 1)
	a.release("x", g.Lease, 204)
	if got := poll.get(t); got.status != 200 {
		t.Errorf("poll: status %d", got.status)
	}
}

// A slow reader is dropped, gets the reason, and delays no other stream.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Limits: server.Limits{Backlog: 1, WriteTimeout: patience}})
	// The reader does not read, so the events fill the buffers of the connection.
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+"/v1/events", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := a.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	done := make(chan bool)
	go func() {
		scan := bufio.NewScanner(res.Body)
		for scan.Scan() {
			if scan.Text() == "event: watching" {
				done <- true
				break
			}
		}
		<-done // it does not read until the others are done
		for scan.Scan() {
			if strings.Contains(scan.Text(), "too slowly") {
				done <- true
				return
			}
		}
		done <- false
	}()
	<-done
	note := strings.Repeat("n", 200)
	for range 20_000 {
		g := a.take("x", `{"note":"`+note+`","owner":"`+note+`"}`)
		a.release("x", g.Lease, 204)
		if dropped(a) {
			break
		}
	}
	if !dropped(a) {
		t.Fatal("the slow reader was not dropped")
	}
	done <- true
	select {
	case told := <-done:
		if !told {
			t.Error("the slow reader was not told")
		}
	case <-time.After(patience):
		t.Error("the slow reader got no end")
	}
}

// dropped reports whether the hub has no stream any more.
func dropped(a *api) bool { return a.srv.Streams() == 0 }

// When the server stops, streams end with an error event.
func TestStreamAtStop(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	s := listen(t, a, "/v1/events")
	s.next(t, "watching")
	stopped := make(chan error, 1)
	go func() { stopped <- a.stop() }()
	if kind, data := s.event(t); kind != "error" || !strings.Contains(data, wire.TypeStopping) {
		t.Errorf("event %s %s", kind, data)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
