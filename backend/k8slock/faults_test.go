package k8slock_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/k8slock"
	"github.com/holdfast-io/holdfast/internal/testkit/launch"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// TestFaults: one server, and for each case a namespace of its own.
func TestFaults(t *testing.T) {
	t.Parallel()
	server := kubernetes()
	for name, test := range map[string]func(*bench){
		"reply-of-an-acquire-lost": lostAcquire, "reply-of-a-release-lost": lostRelease, "late-acquire": lateAcquire, "late-release": lateRelease,
		"reply-of-a-renewal-lost": lostRenewal, "renewal-after-the-end": lateRenewal, "object-deleted": objectDeleted,
		"deaf-watch": deafWatch, "deaf-observer": deafObserver, "broken-watch": brokenWatch, "requests": requests, "refused": refused,
		"garbage": garbage, "unused": unused, "dead-to-the-hasty": deadToTheHasty,
		"strange-session": strangeSession,
		"many-at-once":    manyAtOnce, "namespace-is-deleted": namespaceIsDeleted,
	} {
		server.Namespace(name)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&bench{T: t, server: server, namespace: name})
		})
	}
}

// bench is what a case has.
type bench struct {
	*testing.T

	server    *testserver.KubernetesServer
	namespace string
}

// process is a backend value with a session, and its wire.
type process struct {
	*bench
	*k8slock.Backend

	wire *wire
	id   backend.SessionID
	ttl  time.Duration
	lost chan backend.Loss
}

// settings are what is special about a process.
type settings struct {
	on                    handler // answers its requests from the start
	foreign, idle, safety time.Duration
}

func (b *bench) process(ttl time.Duration) *process {
	b.Helper()
	return b.processWith(ttl, settings{})
}

func (b *bench) processWith(ttl time.Duration, x settings) *process {
	b.Helper()
	transport := b.transport()
	w := &wire{next: transport, on: x.on, count: make(map[string]int)}
	p := &process{bench: b, wire: w, id: backend.NewSessionID(), ttl: ttl, lost: make(chan backend.Loss, 100)}
	var err error
	cfg := k8slock.Config{Namespace: b.namespace, Foreign: x.foreign}
	if p.Backend, err = k8slock.New(&http.Client{Transport: w}, "https://"+b.server.Addr(), cfg); err != nil {
		b.Fatal(err)
	}
	if x.idle > 0 {
		p.SetIdle(x.idle)
	}
	if x.safety > 0 {
		p.SetSafety(x.safety)
	}
	b.Cleanup(func() {
		w.set(nil)
		_ = p.Close()
		transport.CloseIdleConnections()
	})
	open := backend.SessionRequest{ID: p.id, TTL: ttl, Lost: func(l backend.Loss) { p.lost <- l }}
	if err := leasetest.InsistOn(b.T, func(ctx context.Context) error { return p.OpenSession(ctx, open) }); err != nil {
		b.Fatal(err)
	}
	return p
}

// transport uses HTTP/1, so that a watch has a connection of its own.
func (b *bench) transport() *authorized {
	b.Helper()
	pem, err := os.ReadFile(b.server.CA())
	if err != nil {
		b.Fatal(err)
	}
	return &authorized{Transport: plainTransport(pem), token: b.server.Token()}
}

func (p *process) ask(name string) backend.AcquireRequest {
	return backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Session: p.id}
}

func (p *process) take(name string) (backend.AcquireRequest, backend.Grant) {
	p.Helper()
	req := p.ask(name)
	g, err := p.acquire(req)
	if err != nil {
		p.Fatal(err)
	}
	return req, g
}

func (p *process) acquire(req backend.AcquireRequest) (backend.Grant, error) {
	p.Helper()
	return leasetest.Insist(p.T, func(ctx context.Context) (backend.Grant, error) { return p.Acquire(ctx, req) })
}

func (p *process) give(req backend.AcquireRequest) {
	p.Helper()
	calls := 0
	err := leasetest.InsistOn(p.T, func(ctx context.Context) error {
		calls++
		return p.Release(ctx, backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: req.Session})
	})
	if err != nil && (calls == 1 || !errors.Is(err, backend.ErrLost)) { // it may have worked before
		p.Fatal(err)
	}
}

// renew renews the session, which must be alive.
func (p *process) renew() {
	p.Helper()
	res, err := leasetest.Insist(p.T, func(ctx context.Context) (backend.RenewResult, error) {
		return p.Renew(ctx, backend.RenewRequest{Session: p.id})
	})
	if err != nil || res.SessionLost {
		p.Fatalf("%+v, %v", res, err)
	}
}

// renewed renews the session, and returns false if it may have ended before, because the machine was
// too slow for its TTL. sent is when the last renewal was sent.
func (p *process) renewed(sent *time.Time) bool {
	p.Helper()
	var now time.Time
	res, err := leasetest.Insist(p.T, func(ctx context.Context) (backend.RenewResult, error) {
		now = time.Now()
		return p.Renew(ctx, backend.RenewRequest{Session: p.id})
	})
	if err == nil && !res.SessionLost {
		*sent = now
		return true
	}
	if time.Since(*sent) < p.ttl {
		p.Fatalf("%+v, %v", res, err)
	}
	return false
}

// inTime runs a case with a TTL and a lock, and again with twice the TTL and another lock while it
// returns that the machine was too slow.
func (b *bench) inTime(ttl time.Duration, run func(ttl time.Duration, name string) bool) {
	b.Helper()
	for ; !run(ttl, "a-"+ttl.String()); ttl *= 2 {
		if ttl > time.Minute {
			b.Fatalf("too slow for a TTL of %s", ttl)
		}
	}
}

type granted struct {
	grant backend.Grant
	err   error
}

// wait acquires in the background and waits until it is in the queue.
func (p *process) wait(name string) (backend.AcquireRequest, <-chan granted) {
	p.Helper()
	req := p.ask(name)
	req.Wait = true
	got := make(chan granted, 1)
	go func() {
		g, err := p.Acquire(p.Context(), req)
		got <- granted{g, err}
	}()
	p.until("in the queue", func() bool {
		info, err := p.Inspect(p.Context(), name)
		if err != nil {
			return false
		}
		for _, w := range info.Waiters {
			if w.Lease == req.Lease {
				return true
			}
		}
		return false
	})
	return req, got
}

func (b *bench) until(what string, ok func() bool) {
	b.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-tick.C {
		if ok() {
			return
		}
	}
	b.Fatalf("not %s within a minute", what)
}

// soon returns what comes within a minute.
func soon[T any](b *bench, what string, c <-chan T) T {
	b.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		b.Fatalf("%s: nothing came within a minute", what)
		panic("not reached")
	}
}

func (p *process) holders(name string, want ...backend.AcquireRequest) {
	p.Helper()
	info, err := leasetest.Insist(p.T, func(ctx context.Context) (backend.LockInfo, error) { return p.Inspect(ctx, name) })
	if err != nil {
		p.Fatal(err)
	}
	same := len(info.Holders) == len(want)
	for i := range info.Holders {
		same = same && info.Holders[i].Lease == want[i].Lease
	}
	if !same {
		p.Fatalf("holders %+v; they have to be %+v", info.Holders, want)
	}
}

func mayHold(err error) bool {
	u, ok := errors.AsType[*backend.UnavailableError](err)
	return ok && u.MayHold
}

// lostAcquire: the write worked and its answer is lost; a retry yields the one grant. Nothing is remembered of
// locks whose last write had an unknown outcome and that are no longer in use.
func lostAcquire(b *bench) {
	p := b.process(time.Minute)
	const locks = 8
	for i := range locks {
		name := "a" + strconv.Itoa(i)
		p.wire.set(once(http.MethodPut, name, replyLost))
		req := p.ask(name)
		if _, err := p.Acquire(b.Context(), req); !mayHold(err) {
			b.Fatalf("Acquire whose answer is lost: %v", err)
		}
		if p.Writers() == 0 {
			b.Fatal("a write in doubt is forgotten before it is known what became of it")
		}
		p.holders(name, req)
		if i > 0 {
			continue
		}
		one, err := p.Acquire(b.Context(), req)
		again, err2 := p.Acquire(b.Context(), req)
		if err != nil || err2 != nil || again.Token != one.Token {
			b.Fatalf("%+v and %+v, %v, %v", one, again, err, err2)
		}
		p.holders(name, req)
		p.give(req)
		p.holders(name)
	}
	b.until("forgotten", func() bool { return p.Writers() == 0 })
}

// lostRelease: the retry harms no successor.
func lostRelease(b *bench) {
	p, q := b.process(time.Minute), b.process(time.Minute)
	req, _ := p.take("a")
	next, got := q.wait("a")
	p.wire.set(once(http.MethodPut, "a", replyLost))
	release := backend.ReleaseRequest{Name: "a", Lease: req.Lease, Session: p.id}
	if err := p.Release(b.Context(), release); !mayHold(err) {
		b.Fatalf("Release whose answer is lost: %v", err)
	}
	if g := soon(b, "the next", got); g.err != nil {
		b.Fatal(g.err)
	}
	if err := p.Release(b.Context(), release); !errors.Is(err, backend.ErrLost) {
		b.Fatalf("the second Release: %v", err)
	}
	q.holders("a", next)
}

// lateAcquire: a write that arrives after its lease was abandoned does nothing.
func lateAcquire(b *bench) {
	p := b.process(time.Minute)
	first, _ := p.take("a")
	p.give(first)
	arrive := p.delayed("a")
	req := p.ask("a")
	if _, err := p.Acquire(b.Context(), req); !mayHold(err) {
		b.Fatalf("Acquire on a cut wire: %v", err)
	}
	if err := p.Release(b.Context(), backend.ReleaseRequest{Name: "a", Lease: req.Lease, Session: p.id, Abandon: true}); err != nil {
		b.Fatal(err)
	}
	if status := arrive(); status != http.StatusConflict {
		b.Errorf("the late write: %d", status)
	}
	p.holders("a")
}

// lateRelease: a release that arrives after its lease was acquired again, by the same ID, does nothing: the
// lock would pass to the next waiter while the caller holds it.
func lateRelease(b *bench) {
	p := b.process(time.Minute)
	req, _ := p.take("a")
	arrive := p.delayed("a")
	if err := p.Release(b.Context(), backend.ReleaseRequest{Name: "a", Lease: req.Lease, Session: p.id}); !mayHold(err) {
		b.Fatalf("Release on a cut wire: %v", err)
	}
	if _, err := p.Acquire(b.Context(), req); err != nil {
		b.Fatal(err)
	}
	if status := arrive(); status != http.StatusConflict {
		b.Errorf("the late write: %d", status)
	}
	p.holders("a", req)
}

// lostRenewal: the next one continues from what the lost one wrote.
func lostRenewal(b *bench) {
	p := b.process(time.Minute)
	p.wire.set(once(http.MethodPut, "holdfast-session-", replyLost))
	if _, err := p.Renew(b.Context(), backend.RenewRequest{Session: p.id}); !errors.Is(err, backend.ErrUnavailable) || !mayHold(err) {
		b.Fatalf("Renew whose answer is lost: %v", err)
	}
	p.renew()
}

// lateRenewal: a renewal that arrives after the session was ended does not bring it back.
func lateRenewal(b *bench) {
	p, q := b.process(12*time.Second), b.process(time.Minute) // the waiter is in the queue in this time
	p.take("a")
	arrive := p.delayed("holdfast-session-")
	if _, err := p.Renew(b.Context(), backend.RenewRequest{Session: p.id}); !errors.Is(err, backend.ErrUnavailable) {
		b.Fatalf("Renew on a cut wire: %v", err)
	}
	next, got := q.wait("a")
	if g := soon(b, "the next", got); g.err != nil {
		b.Fatal(g.err)
	}
	if l := soon(b, "the loss", p.lost); l.Session != p.id || l.Cause != backend.CauseSession {
		b.Errorf("%+v", l)
	}
	if status := arrive(); status < http.StatusBadRequest {
		b.Errorf("the late renewal: %d", status)
	}
	if res, err := p.Renew(b.Context(), backend.RenewRequest{Session: p.id}); err != nil || !res.SessionLost {
		b.Errorf("Renew after the end: %+v, %v", res, err)
	}
	q.holders("a", next)
}

// strangeSession: a session is bound to the value that opened it. Another value that knows its ID
// can neither continue nor end it, and takes nothing from it.
func strangeSession(b *bench) {
	p, q := b.process(time.Minute), b.process(time.Minute)
	req, _ := p.take("a")
	if err := q.OpenSession(b.Context(), backend.SessionRequest{ID: p.id, TTL: time.Minute}); !errors.Is(err, backend.ErrSessionLost) {
		b.Errorf("OpenSession of another value's session: %v; it has to be ErrSessionLost", err)
	}
	if res, err := q.Renew(b.Context(), backend.RenewRequest{Session: p.id}); err != nil || !res.SessionLost {
		b.Errorf("Renew of another value's session: %+v, %v", res, err)
	}
	other := q.ask("b")
	other.Session = p.id
	if _, err := q.Acquire(b.Context(), other); !errors.Is(err, backend.ErrSessionLost) {
		b.Errorf("Acquire under another value's session: %v", err)
	}
	if err := q.EndSession(b.Context(), p.id); err != nil {
		b.Errorf("EndSession of another value's session: %v", err)
	}
	p.renew()
	p.holders("a", req)
	p.give(req)
	q.take("a")
}

// objectDeleted: the Lease of a lock that is held is deleted. The holder is told, and tokens keep
// growing.
func objectDeleted(b *bench) {
	p := b.process(time.Minute)
	req, g := p.take("a")
	b.delete("a")
	if l := soon(b, "the loss", p.lost); l.Lease != req.Lease || l.Cause != backend.CauseGone {
		b.Errorf("%+v", l)
	}
	if _, next := p.take("a"); next.Token <= g.Token {
		b.Errorf("token %d after %d", next.Token, g.Token)
	}
}

// namespaceIsDeleted: an API server that accepts no new objects in the namespace answers as if a right were missing. The
// user lacks none, and holders keep their locks.
func namespaceIsDeleted(b *bench) {
	p := b.process(time.Minute)
	req, _ := p.take("a")
	if _, err := launch.KubernetesCall(b.Context(), b.server.Server, http.MethodDelete, "/api/v1/namespaces/"+b.namespace, ""); err != nil {
		b.Fatal(err)
	}
	var err error
	leasetest.Eventually(b.T, "the API server refuses new objects", func() bool {
		_, err = p.Acquire(b.Context(), p.ask(string(backend.NewLeaseID())))
		return errors.Is(err, backend.ErrRefused)
	})
	if strings.Contains(err.Error(), "the right") {
		b.Errorf("%v", err)
	}
	if res, err := p.Renew(b.Context(), backend.RenewRequest{Session: p.id}); err != nil || res.SessionLost || len(res.Lost) > 0 {
		b.Errorf("%+v, %v", res, err)
	}
	p.give(req)
}

func (b *bench) delete(name string) {
	b.Helper()
	b.send(http.MethodDelete, "/"+name, "")
}

func (b *bench) send(method, path, body string) string {
	b.Helper()
	tr := b.transport()
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(b.Context(), method,
		"https://"+b.server.Addr()+"/apis/coordination.k8s.io/v1/namespaces/"+b.namespace+"/leases"+path, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := tr.RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode >= http.StatusMultipleChoices {
		b.Fatalf("%s %s: %s %s %v", method, path, res.Status, text, err)
	}
	return string(text)
}
