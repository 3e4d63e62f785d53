package k8slock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// TestHostile: one server, and for each case a namespace of its own.
func TestHostile(t *testing.T) {
	t.Parallel()
	server := kubernetes()
	for name, test := range map[string]func(*bench){
		"hand-over-in-a-full-queue": handOverInAFullQueue, "given-up-while-it-is-read": givenUpWhileItIsRead,
		"watch-that-ends-at-once": watchThatEndsAtOnce, "stranger-in-queue": strangerInQueue,
		"not-found-by-a-proxy": notFoundByAProxy, "alive-to-the-hasty": aliveToTheHasty,
		"many-to-present": manyToPresent, "answers-without-a-date": answersWithoutADate,
		"nothing-is-remembered": nothingIsRemembered, "found-by-a-timer": foundByATimer,
	} {
		server.Namespace(name)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&bench{T: t, server: server, namespace: name})
		})
	}
}

// handOverInAFullQueue: as many readers wait as fit, and the next is refused without harm. The writer before them can still
// release the lock: they are all granted then, which takes more room than to wait does.
func handOverInAFullQueue(b *bench) {
	p, q := b.process(10*time.Minute), b.process(10*time.Minute)
	first, _ := q.take("a")
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	const atOnce, most, note = 100, 1000, 500
	full := make(chan struct{})
	var once sync.Once
	results := make(chan error, most)
	asked := 0
	for over := false; !over && asked < most; {
		for range atOnce {
			asked++
			go func() {
				req := p.ask("a")
				req.Wait, req.Mode, req.Note = true, backend.Shared, strings.Repeat("x", note)
				_, err := p.Acquire(ctx, req)
				for mayHold(err) && ctx.Err() == nil { // a busy machine may need longer than one attempt for so large a record
					_, err = p.Acquire(ctx, req)
				}
				if err != nil && strings.Contains(err.Error(), "has no room for another waiter") {
					once.Do(func() { close(full) })
				}
				results <- err
			}()
		}
		b.until("in the queue, or refused", func() bool {
			select {
			case <-full:
				over = true
				return true
			default:
			}
			info, err := q.Inspect(b.Context(), "a")
			return err == nil && len(info.Waiters) == asked
		})
	}
	q.give(first)
	granted := 0
	for range asked {
		if err := soon(b, "the grant of a reader", results); err == nil {
			granted++
		} else if !errors.Is(err, backend.ErrUnavailable) {
			b.Error(err)
		}
	}
	if granted < 100 || granted == asked {
		b.Errorf("%d of %d were granted", granted, asked)
	}
}

// foundByATimer: the watch reports nothing. A waiter whose timer reads the lock passes the grant on to
// the other waiters that have it, and none of them is told that its lease was lost.
func foundByATimer(b *bench) {
	const readers, note = 100, 1000
	first := b.process(10 * time.Minute)
	held, _ := first.take("a")
	p := b.processWith(10*time.Minute, settings{on: deaf(true), safety: 2 * time.Second})
	results := make(chan granted, readers)
	for range readers {
		go func() {
			req := p.ask("a")
			req.Wait, req.Mode, req.Note = true, backend.Shared, strings.Repeat("x", note)
			g, err := p.Acquire(b.Context(), req)
			results <- granted{g, err}
		}()
	}
	b.until("in the queue", func() bool {
		info, err := first.Inspect(b.Context(), "a")
		return err == nil && len(info.Waiters) == readers
	})
	first.give(held)
	for range readers {
		if g := soon(b, "the grant of a reader", results); g.err != nil {
			b.Error(g.err)
		} else if !g.grant.ByTimer {
			b.Errorf("granted by the watch: %+v", g.grant)
		}
	}
}

// givenUpWhileItIsRead: a caller gives up while the lock is being read for it. It is told that
// nothing was sent, and nothing is.
func givenUpWhileItIsRead(b *bench) {
	p := b.process(time.Minute)
	reading, open := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p.wire.set(func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
		if req.Method == http.MethodGet && object(req) == "a" {
			once.Do(func() { close(reading); <-open })
		}
		return next.RoundTrip(req)
	})
	ctx, cancel := context.WithCancel(b.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := p.Acquire(ctx, p.ask("a"))
		failed <- err
	}()
	soon(b, "the question", reading)
	cancel()
	if err := soon(b, "the end", failed); !errors.Is(err, backend.ErrUnavailable) || mayHold(err) {
		b.Fatalf("given up before anything was sent: %v", err)
	}
	close(open)
	req, _ := p.take("a") // behind the other, if that is still in progress
	p.holders("a", req)
}

// watchThatEndsAtOnce: something accepts the watch and ends it immediately, each time. The watch is
// retried, but not in a loop.
func watchThatEndsAtOnce(b *bench) {
	var watches atomic.Int64
	b.processWith(time.Minute, settings{on: func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
		if isWatch(req) {
			watches.Add(1)
			return answer(req, http.StatusOK, ""), nil
		}
		return next.RoundTrip(req)
	}})
	b.until("asked for", func() bool { return watches.Load() > 0 })
	before := watches.Load()
	time.Sleep(3 * time.Second)
	if n := watches.Load() - before; n > 100 {
		b.Errorf("%d watches in three seconds", n)
	} else {
		b.Logf("%d watches in three seconds", n)
	}
}

// strangerInQueue: the queue has a session that no longer exists and that no event told of, and the
// request for it fails. It is retried.
func strangerInQueue(b *bench) {
	p := b.process(10 * time.Minute)
	q := b.process(10 * time.Minute)
	p.take("a")
	_, got := q.wait("a")
	var failed atomic.Bool
	q.wire.set(once(http.MethodGet, "holdfast-session-", func(req *http.Request, _ http.RoundTripper) (*http.Response, error) {
		failed.Store(true)
		return answer(req, http.StatusInternalServerError, "{}"), nil
	}))
	var o map[string]any
	if err := json.Unmarshal([]byte(b.send(http.MethodGet, "/a", "")), &o); err != nil {
		b.Fatal(err)
	}
	text, err := json.Marshal(o)
	if err != nil {
		b.Fatal(err)
	}
	b.send(http.MethodPut, "/a", strings.ReplaceAll(string(text), string(p.id), string(backend.NewSessionID())))
	if g := soon(b, "the grant", got); g.err != nil {
		b.Error(g.err)
	}
	if !failed.Load() {
		b.Error("the session was never requested")
	}
}

// notFoundByAProxy: a proxy in front of the API server answers 404 for a session that lives. Its
// lock is not granted to another client.
func notFoundByAProxy(b *bench) {
	p := b.process(10 * time.Minute)
	held, _ := p.take("a")
	q := b.process(10 * time.Minute)
	q.wire.set(func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
		if req.Method == http.MethodGet && strings.HasPrefix(object(req), "holdfast-session-") {
			return answer(req, http.StatusNotFound, "default backend - 404"), nil
		}
		return next.RoundTrip(req)
	})
	if g, err := q.Acquire(b.Context(), q.ask("a")); err == nil {
		b.Errorf("granted while another holds it: %+v", g)
	}
	p.holders("a", held)
}

var errGranted = errors.New("it was granted")

// aliveToTheHasty: an acquire that does not wait takes no session for dead that is renewed, whatever the API
// server's clock.
func aliveToTheHasty(b *bench) {
	b.inTime(4*time.Second, func(ttl time.Duration, name string) bool {
		sent := time.Now()
		p := b.process(ttl)
		if _, err := p.acquire(p.ask(name)); err != nil && time.Since(sent) < ttl {
			b.Fatal(err)
		} else if err != nil {
			return false
		}
		const tries = 3
		failed, ended := make(chan error, 1), make(chan struct{})
		go func() {
			defer close(ended)
			for range tries {
				q := b.processWith(time.Minute, settings{on: anHourAhead})
				_, err := q.acquire(q.ask(name))
				_ = q.Close()
				if err == nil {
					err = errGranted
				}
				if !errors.Is(err, backend.ErrHeld) {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
		tick := time.NewTicker(ttl / 8)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if !p.renewed(&sent) {
					<-ended
					return false
				}
			case err := <-failed:
				if err != nil && time.Since(sent) < ttl {
					b.Fatalf("asked while another renews: %v", err)
				}
				return err == nil
			}
		}
	})
}

// manyToPresent: there is no time to write all locks again for client-go. A renewal counts without
// those that can wait, and not without those that client-go could take.
func manyToPresent(b *bench) {
	const locks, foreign = 30, 5 * time.Minute
	p := b.processWith(time.Minute, settings{foreign: foreign})
	for i := range locks {
		p.take(fmt.Sprintf("lock-%d", i))
	}
	var mu sync.Mutex
	asked := make(map[string]bool)
	answers := make(chan struct{})
	p.wire.set(func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
		if name := object(req); req.Method == http.MethodPut && strings.HasPrefix(name, "lock-") {
			mu.Lock()
			asked[name] = true
			mu.Unlock()
			select {
			case <-answers:
			case <-req.Context().Done():
			}
		}
		return next.RoundTrip(req)
	})
	renew := func() int {
		p.until("renewed", func() bool {
			res, err := p.Renew(b.Context(), backend.RenewRequest{Session: p.id})
			if res.SessionLost {
				b.Fatal("the session is lost")
			}
			return err == nil
		})
		mu.Lock()
		defer mu.Unlock()
		return len(asked)
	}
	if n := renew(); n != 0 {
		b.Errorf("%d locks were rewritten immediately", n)
	}
	p.Age(foreign * 2 / 5)
	if n := renew(); n != 1 {
		b.Errorf("%d locks were to be written again while all can wait and the first is not answered", n)
	}
	close(answers)
	p.Age(foreign * 3 / 10)
	if n := renew(); n != locks {
		b.Errorf("%d locks of %d were written again while client-go could take them before the next renewal", n, locks)
	}
}

// answersWithoutADate: the clocks of the API server and of this machine are years apart, and
// something removes the Date from the answers. An acquire that does not wait takes no session for
// dead.
func answersWithoutADate(b *bench) {
	p := b.process(time.Minute)
	held, _ := p.take("a")
	times := regexp.MustCompile(`"time":"[^"]+"`)
	q := b.processWith(time.Minute, settings{on: func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
		res, err := next.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		res.Header.Del("Date")
		if req.Method != http.MethodGet || isWatch(req) {
			return res, nil
		}
		text, err := io.ReadAll(res.Body)
		if err != nil {
			return nil, err
		}
		res.Body = io.NopCloser(bytes.NewReader(times.ReplaceAll(text, []byte(`"time":"2020-01-01T00:00:00Z"`))))
		return res, nil
	}})
	if _, err := q.Acquire(b.Context(), q.ask("a")); !errors.Is(err, backend.ErrHeld) {
		b.Errorf("asked while another holds it: %v", err)
	}
	p.holders("a", held)
}

// nothingIsRemembered: a write is refused because another was faster, and there is none after it.
// Nothing is kept of that lock: names may be many.
func nothingIsRemembered(b *bench) {
	p := b.processWith(time.Minute, settings{on: deaf(false)})
	q := b.process(time.Minute)
	for i := range 5 {
		req, _ := p.take(fmt.Sprintf("lock-%d", i))
		p.give(req)
		q.take(req.Name) // p is not told of it
		if _, err := p.Acquire(b.Context(), p.ask(req.Name)); !errors.Is(err, backend.ErrHeld) {
			b.Fatal(err)
		}
	}
	b.until("forgotten", func() bool { return p.Writers() == 0 })
}
