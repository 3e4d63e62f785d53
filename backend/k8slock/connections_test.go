package k8slock_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func plainTransport(pem []byte) *http.Transport {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}}
}

// authorized sends the administrator's token.
type authorized struct {
	*http.Transport

	token string
}

func (a *authorized) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+a.token)
	return a.Transport.RoundTrip(req)
}

// deafWatch: a connection is silently dead. The next renewals find out.
func deafWatch(b *bench) {
	p := b.process(time.Minute)
	req, _ := p.take("a")
	d := b.processWith(time.Minute, settings{on: deaf(false)})
	next, got := d.wait("a")
	p.give(req)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_, _ = d.Renew(b.Context(), backend.RenewRequest{Session: d.id})
			case <-stop:
				return
			}
		}
	})
	before := time.Now()
	g := soon(b, "the grant", got)
	close(stop)
	wg.Wait()
	if g.err != nil {
		b.Fatal(g.err)
	}
	if d := time.Since(before); d > 25*time.Second {
		b.Errorf("it took %s: that was the timer, not the renewals", d)
	}
	d.holders("a", next)
}

// deafObserver: a process that receives no renewals takes no session for dead that is renewed.
func deafObserver(b *bench) {
	b.inTime(10*time.Second, func(ttl time.Duration, name string) bool {
		sent := time.Now()
		p := b.process(ttl)
		held := p.ask(name)
		if _, err := p.acquire(held); err != nil && time.Since(sent) < ttl {
			b.Fatal(err)
		} else if err != nil {
			return false
		}
		d := b.processWith(10*time.Minute, settings{on: deaf(false)})
		if !p.renewed(&sent) {
			return false
		}
		_, got := d.wait(name)
		tick := time.NewTicker(ttl / 5)
		defer tick.Stop()
		for end := time.Now().Add(2 * ttl); time.Now().Before(end); <-tick.C {
			if !p.renewed(&sent) {
				return false
			}
		}
		select {
		case g := <-got:
			b.Fatalf("granted while another renews: %+v", g)
		default:
		}
		p.holders(name, held)
		return true
	})
}

// brokenWatch: the watch ends again and again; nothing is lost.
func brokenWatch(b *bench) {
	var mu sync.Mutex
	var open []io.Closer
	p, q := b.process(10*time.Minute), b.processWith(10*time.Minute, settings{on: func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
		res, err := next.RoundTrip(req)
		if err == nil && isWatch(req) {
			mu.Lock()
			defer mu.Unlock()
			open = append(open, res.Body)
		}
		return res, err
	}})
	for range 20 {
		req, _ := p.take("a")
		next, got := q.wait("a")
		mu.Lock()
		for _, x := range open {
			_ = x.Close()
		}
		open = nil
		mu.Unlock()
		p.give(req)
		if g := soon(b, "the grant", got); g.err != nil {
			b.Fatal(g.err)
		}
		q.give(next)
	}
}

// requests counts what each operation costs: that is what a cluster pays.
func requests(b *bench) {
	p, q := b.process(time.Minute), b.process(time.Minute)
	var held []backend.AcquireRequest
	for i := range 50 {
		req, _ := p.take(fmt.Sprintf("lock-%d", i))
		held = append(held, req)
	}
	p.wire.counted()
	if _, err := p.Renew(b.Context(), backend.RenewRequest{Session: p.id}); err != nil {
		b.Fatal(err)
	}
	expect(b, "to renew with 50 locks", p.wire.counted(), map[string]int{http.MethodPut: 1})
	p.give(held[0])
	expect(b, "to release", p.wire.counted(), map[string]int{http.MethodPut: 1})
	req, _ := p.take("lock-0")
	expect(b, "to acquire what was locked before", p.wire.counted(), map[string]int{http.MethodPut: 1})
	_, got := q.wait("lock-0")
	p.holders("lock-0", req) // it knows of the waiter: otherwise it would write to an outdated version, and once more
	q.wire.counted()
	p.wire.counted()
	p.give(req)
	if g := soon(b, "the next", got); g.err != nil {
		b.Fatal(g.err)
	}
	expect(b, "to hand over", p.wire.counted(), map[string]int{http.MethodPut: 1})
	expect(b, "to be handed over to", q.wire.counted(), map[string]int{})
	if err := p.EndSession(b.Context(), p.id); err != nil {
		b.Fatal(err)
	}
	expect(b, "to end a session with 49 locks", p.wire.counted(), map[string]int{http.MethodDelete: 1})
}

func expect(b *bench, what string, got, want map[string]int) {
	b.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		b.Errorf("%s took %v requests, and has to take %v", what, got, want)
	}
}

// refused: an API server that is too busy reports when to retry.
func refused(b *bench) {
	p := b.process(time.Minute)
	p.wire.set(once(http.MethodPut, "a", func(req *http.Request, _ http.RoundTripper) (*http.Response, error) {
		res := answer(req, http.StatusTooManyRequests, `{"message":"too many"}`)
		res.Header.Set("Retry-After", "7")
		return res, nil
	}))
	_, err := p.Acquire(b.Context(), p.ask("a"))
	u, ok := errors.AsType[*backend.UnavailableError](err)
	if !ok || u.MayHold || u.RetryAfter != 7*time.Second {
		b.Errorf("%v", err)
	}
}

// garbage: a Lease whose annotation is not ours is left alone.
func garbage(b *bench) {
	p := b.process(time.Minute)
	b.send(http.MethodPost, "", `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"a","labels":{"holdfast.io/kind":"lock"},"annotations":{"holdfast.io/state":"{"}},"spec":{}}`)
	if _, err := p.Acquire(b.Context(), p.ask("a")); !errors.Is(err, backend.ErrUnavailable) {
		b.Errorf("Acquire: %v", err)
	}
	if _, err := p.List(b.Context(), backend.ListRequest{}); err != nil {
		b.Errorf("List: %v", err)
	}
}

// unused: objects of locks that are not in use go; those that other programs made stay, and tokens
// keep growing.
func unused(b *bench) {
	p := b.process(time.Minute)
	req, before := p.take("a")
	p.give(req)
	held, _ := p.take("held")
	b.send(http.MethodPost, "", `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"theirs"},"spec":{}}`)
	theirs, _ := p.take("theirs")
	p.give(theirs)
	q := b.processWith(time.Minute, settings{idle: 2 * time.Second})
	b.until("deleted", func() bool { return !strings.Contains(b.send(http.MethodGet, "", ""), `"name":"a"`) })
	all := b.send(http.MethodGet, "", "")
	if !strings.Contains(all, `"name":"theirs"`) || !strings.Contains(all, `"name":"held"`) {
		b.Error("an object that is in use, or that another program owns, was deleted")
	}
	p.holders("held", held)
	again, after := q.take("a")
	if after.Token <= before.Token {
		b.Errorf("token %d after %d", after.Token, before.Token)
	}
	p.holders("a", again)
	if _, err := p.Acquire(b.Context(), p.ask("a")); !errors.Is(err, backend.ErrHeld) {
		b.Errorf("Acquire by who knew the old object: %v", err)
	}
}

// deadToTheHasty: processes that try once and end never see a session unrenewed for its TTL. They
// still get the lock when its holder is long dead, and not before, whatever the API server's clock.
func deadToTheHasty(b *bench) {
	const ttl = 10 * time.Second // the lock is taken in this time
	opened := time.Now()         // no later than the server counts the TTL from
	p := b.process(ttl)
	p.take("a")
	p.wire.set(cutOff) // it is dead
	try := func() error {
		q := b.processWith(time.Minute, settings{on: anHourAhead})
		defer q.Close()
		_, err := q.acquire(q.ask("a"))
		return err
	}
	const atOnce = 3 // what they observe at the same time counts once
	var granted atomic.Bool
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for end := time.Now().Add(time.Minute); time.Now().Before(end) && !granted.Load(); {
				err := try()
				if err != nil && !errors.Is(err, backend.ErrHeld) {
					b.Error(err)
					return
				}
				if err == nil {
					granted.Store(true)
				}
				if since := time.Since(opened); err == nil && since < ttl {
					b.Errorf("granted after %s", since)
				}
			}
		})
	}
	all.Wait()
	if !granted.Load() {
		b.Error("not granted to a caller that does not wait")
	}
}

// TestServerStops: an API server hangs. Calls end with their contexts, and continue when it does.
func TestServerStops(t *testing.T) {
	t.Parallel()
	server := testserver.Kubernetes(t)
	b := &bench{T: t, server: server, namespace: "default"}
	p, q := b.process(10*time.Minute), b.process(10*time.Minute)
	req, _ := p.take("a")
	next, got := q.wait("a")
	server.Process().Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // it is sent in this time
	defer cancel()
	if err := p.Release(ctx, backend.ReleaseRequest{Name: "a", Lease: req.Lease, Session: p.id}); !mayHold(err) {
		t.Errorf("Release while the server hangs: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := p.Renew(ctx, backend.RenewRequest{Session: p.id})
	if !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Renew while the server hangs: %v", err)
	}
	// One call that hangs does not hold up another beyond that one's own context.
	long, stop := context.WithCancel(t.Context())
	var hung sync.WaitGroup
	hung.Go(func() { _, _ = p.Renew(long, backend.RenewRequest{Session: p.id}) })
	for range 2 {
		short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		before := time.Now()
		_, err := p.Renew(short, backend.RenewRequest{Session: p.id})
		cancel()
		if d := time.Since(before); !errors.Is(err, backend.ErrUnavailable) || d > 30*time.Second {
			t.Errorf("Renew beside one that hangs took %s: %v", d, err)
		}
	}
	stop()
	hung.Wait()
	server.Process().Cont()
	if g := soon(b, "the next", got); g.err != nil {
		t.Fatal(g.err)
	}
	q.holders("a", next)
}
