package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// The answer to a batch is lost, before or after it was made, or in the middle of it: no lock
// is granted twice, and none is lost.
func TestBatchReplyIsLost(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for what, keep := range map[string]int{"not executed": -1, "executed": 0, "some lines come": 5} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newStation(t)
			var cut atomic.Bool
			s.batch = func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if cut.Swap(true) {
					next.ServeHTTP(w, r)
					return
				}
				if keep < 0 {
					panic(http.ErrAbortHandler)
				}
				got := httptest.NewRecorder()
				next.ServeHTTP(got, r)
				w.Header().Set("Content-Type", got.Header().Get("Content-Type"))
				lines := bytes.SplitAfterN(got.Body.Bytes(), []byte("\n"), keep+1)
				for _, line := range lines[:keep] {
					_, _ = w.Write(line)
				}
				_, _ = w.Write([]byte(`{"op":"acquire",`)) // half a line
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
			c := remoteClient(t, s.b)
			s.busy()
			const n = 20
			locks, done := make([]*holdfast.Lock, n), make([]chan error, n)
			for i := range n {
				done[i] = s.async(func(ctx context.Context) error {
					var err error
					locks[i], err = c.Acquire(ctx, fmt.Sprint("x", i))
					return err
				})
			}
			s.queued(n)
			s.probe.SetLate(10 * time.Millisecond)
			s.open()
			for i := range n {
				if err := <-done[i]; err != nil {
					t.Errorf("x%d: %v", i, err)
					continue
				}
				if h := s.holders(fmt.Sprint("x", i)); len(h) != 1 || h[0].Token != locks[i].Token() || h[0].Lease != locks[i].Lease().ID {
					t.Errorf("x%d: token %d, holders %+v", i, locks[i].Token(), h)
				}
			}
			for _, l := range locks {
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// An item without a result has an unknown outcome, and is never "not held".
func TestBatchHalfAnswered(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := newStation(t)
	s.batch = func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		got := httptest.NewRecorder()
		next.ServeHTTP(got, r)
		w.Header().Set("Content-Type", wire.ContentTypeLines)
		_, _ = w.Write(bytes.SplitAfter(got.Body.Bytes(), []byte("\n"))[0])
	}
	s.busy()
	_, grants, done := s.acquireMany(3, nil)
	s.queued(3)
	s.open()
	had := 0
	for i := range done {
		err := <-done[i]
		if err == nil && grants[i].Token.Valid() {
			had++
		} else if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold || away.Op != "acquire" {
			t.Errorf("x%d: %+v, %v", i, grants[i], err)
		}
	}
	if had != 1 {
		t.Errorf("%d were told a grant, and one line came", had)
	}
}

// Batches are tried once with a server that does not know the call, or a proxy that does not
// let it pass; no caller notices.
func TestBatchIsNotKnown(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for _, status := range []int{404, 405, 501, 403, 413} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			s := newStation(t)
			s.batch = func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(status) }
			s.busy()
			reqs, _, done := s.acquireMany(5, func(i int, r *backend.AcquireRequest) { r.Wait = i > 2 })
			s.queued(5)
			s.open()
			for i := range done {
				if err := <-done[i]; err != nil {
					t.Errorf("%s: %v", reqs[i].Name, err)
				}
			}
			var work sync.WaitGroup
			for _, r := range reqs {
				work.Go(func() {
					if err := s.b.Release(t.Context(), backend.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err != nil {
						t.Error(err)
					}
				})
			}
			work.Wait()
			singles, batches, _ := s.seen()
			if len(batches) != 1 || len(singles) != 10 {
				t.Errorf("%d batches, and %d requests for one", len(batches), len(singles))
			}
		})
	}
}

// A server that is overloaded, or unavailable, reports that to every caller.
func TestBatchIsShed(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for status, mayHold := range map[int]bool{503: false, 502: true, 429: false, 200: true, 302: true} {
		s := newStation(t)
		s.batch = func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			if status == 503 {
				w.Header().Set("Content-Type", wire.ContentTypeProblem)
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(status)
				_, _ = io.WriteString(w, `{"type":"`+wire.TypeOverloaded+`","may_hold":false}`)
				return
			}
			w.WriteHeader(status)
		}
		s.busy()
		_, _, done := s.acquireMany(3, nil)
		s.queued(3)
		s.open()
		for i := range done {
			err := <-done[i]
			if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || away.MayHold != mayHold || status == 503 && away.RetryAfter != 7*time.Second {
				t.Errorf("%d: %v, want that it may hold: %v", status, err, mayHold)
			}
		}
	}
}

// The end of one caller's context affects only that caller: it returns immediately, whether its
// request was sent or not, and the others get their answers.
func TestBatchCallerGivesUp(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := newStation(t)
	inside, goOn := make(chan struct{}), make(chan struct{})
	s.batch = func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		close(inside)
		<-goOn
		next.ServeHTTP(w, r)
	}
	s.busy()
	mine := errors.New("the caller's own")
	ctx, cancel := context.WithCancelCause(t.Context())
	early, late := timedRequest("early"), timedRequest("late")
	call := func(r backend.AcquireRequest) chan error {
		return s.async(func(context.Context) error { _, err := s.b.Acquire(ctx, r); return err })
	}
	stayed := call(early)
	s.queued(1)
	cancel(mine)
	if err := <-stayed; !errors.Is(err, mine) {
		t.Errorf("in the queue: %v", err)
	}
	s.queued(0)
	ctx, cancel = context.WithCancelCause(t.Context())
	left := call(late)
	s.queued(1)
	_, _, done := s.acquireMany(2, nil)
	s.queued(3)
	s.open()
	<-inside
	cancel(mine)
	if err := <-left; !errors.Is(err, mine) {
		t.Errorf("on its way: %v", err)
	}
	close(goOn)
	for i := range done {
		if err := <-done[i]; err != nil {
			t.Error(err)
		}
	}
	if h := s.holders("early"); len(h) != 0 {
		t.Errorf("a question that never left was answered: %+v", h)
	}
	// C7: it was granted, and is abandoned.
	if err := s.b.Release(t.Context(), backend.ReleaseRequest{Name: "late", Lease: late.Lease, Abandon: true}); err != nil || len(s.holders("late")) != 0 {
		t.Errorf("abandon: %v, holders %+v", err, s.holders("late"))
	}
	if _, err := s.direct.Acquire(t.Context(), late); !errors.Is(err, backend.ErrLost) {
		t.Errorf("the lease was given up: %v", err)
	}
}

// Close ends the operations in the queue and those in progress.
func TestBatchClose(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := newStation(t)
	s.batch = func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() }
	s.busy()
	_, _, done := s.acquireMany(2, nil)
	s.queued(2)
	s.open()
	leasetest.Eventually(t, "the batch is on its way", func() bool { _, batches, _ := s.seen(); return len(batches) == 1 })
	if err := s.b.Close(); err != nil {
		t.Error(err)
	}
	for i := range done {
		if err := <-done[i]; !errors.Is(err, backend.ErrClosed) {
			t.Errorf("on its way: %v", err)
		}
	}
	if _, err := s.b.Acquire(t.Context(), timedRequest("x")); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("later: %v", err)
	}

	s = newStation(t)
	s.busy()
	_, _, done = s.acquireMany(2, nil)
	s.queued(2)
	if err := s.b.Close(); err != nil {
		t.Error(err)
	}
	for i := range done {
		if err := <-done[i]; !errors.Is(err, backend.ErrClosed) {
			t.Errorf("in the queue: %v", err)
		}
	}
}

// A slow request holds back the next batch only for a while, and a slow lock in a batch does
// not delay the answers of the others.
func TestBatchWithASlowLock(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := newStation(t)
	s.probe.SetLate(10 * time.Millisecond)
	gates := make([]chan error, s.probe.MaxRequests)
	for i := range gates { // all requests are blocked
		gates[i] = s.through()
	}
	leasetest.Eventually(t, "they are at the gate", func() bool { return s.waiting() == len(gates) })
	_, _, done := s.acquireMany(10, nil)
	for i := range done {
		if err := <-done[i]; err != nil {
			t.Error(err)
		}
	}
	for i := range gates {
		select {
		case err := <-gates[i]:
			t.Errorf("the others had to wait until this had its answer: %v", err)
		default:
		}
	}
	s.open()

	s = newStation(t)
	hold := make(chan struct{})
	s.batch = func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		got := httptest.NewRecorder()
		next.ServeHTTP(got, r)
		w.Header().Set("Content-Type", wire.ContentTypeLines)
		lines := bytes.SplitAfter(got.Body.Bytes(), []byte("\n"))
		for _, line := range lines[:2] {
			_, _ = w.Write(line)
		}
		_ = http.NewResponseController(w).Flush()
		<-hold
		for _, line := range lines[2:] {
			_, _ = w.Write(line)
		}
	}
	s.busy()
	_, _, done = s.acquireMany(3, nil)
	s.queued(3)
	s.open()
	all := make(chan error, 3)
	for _, d := range done {
		go func() { all <- <-d }()
	}
	for range 2 {
		if err := <-all; err != nil {
			t.Error(err)
		}
	}
	leasetest.Eventually(t, "the batch has ended although one answer is late", func() bool { return s.probe.Requests() == 0 })
	close(hold)
	if err := <-all; err != nil {
		t.Error(err)
	}
}

// However many operations there are, and however large: no request exceeds the limits of the
// server.
func TestBatchFits(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := newStation(t)
	s.busy()
	n := 2*s.probe.MaxItems + 50
	reqs, _, done := s.acquireMany(n, func(i int, r *backend.AcquireRequest) {
		if i%2 == 0 {
			r.Name = strings.Repeat("<", 400) + r.Name
			r.Note = strings.Repeat(`"`, 1000)
		}
	})
	s.queued(n)
	s.open()
	for i := range done {
		if err := <-done[i]; err != nil {
			t.Fatalf("%s: %v", reqs[i].Name, err)
		}
	}
	singles, batches, _ := s.seen()
	for _, b := range batches {
		if n := len(b.Acquire); n > s.probe.MaxItems {
			t.Errorf("%d in one request", n)
		}
	}
	if len(batches) < 3 || len(singles) > 10 {
		t.Errorf("%d batches, and %d had to ask alone", len(batches), len(singles))
	}
}
