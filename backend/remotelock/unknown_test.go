package remotelock_test

import (
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// A server that refuses a request does not answer the requests before it: the lease may have
// been granted to one of them, or to the place in the queue that is kept after it.
func TestRefusedAfterAPoll(t *testing.T) {
	t.Parallel()
	lease := backend.NewLeaseID()
	for name, first := range map[string]func(w http.ResponseWriter){
		"the poll was granted": func(w http.ResponseWriter) {
			time.Sleep(600 * time.Millisecond) // longer than a twentieth of the TTL: the grant is requested once more
			w.Header().Set(wire.HeaderWaited, "600ms")
			fmt.Fprintf(w, `{"name":"x","lease":%q,"token":5,"ttl":"10s","expires_at":"2026-11-20T11:30:05.999Z"}`, lease)
		},
		"the poll waited in the queue": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", wire.ContentTypeProblem)
			w.WriteHeader(http.StatusConflict)
			fmt.Fprintf(w, `{"type":%q,"holders":[],"position":1}`, wire.TypeHeld)
		},
	} {
		var asked atomic.Int64
		b, _ := serving(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost && asked.Add(1) == 1 {
				first(w)
				return
			}
			w.Header().Set("Content-Type", wire.ContentTypeProblem)
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintf(w, `{"type":%q,"may_hold":false}`, wire.TypeOverloaded)
		})
		_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "x", Lease: lease, Timed: true, TTL: 10 * time.Second, Wait: true})
		if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold {
			t.Errorf("%s: %v, want one that may hold the lease", name, err)
		}
		if n := asked.Load(); n != 2 {
			t.Errorf("%s: asked %d times, want 2", name, n)
		}
	}
}

// A call whose connection ends before the answer may have worked. Over HTTP/1 it is not repeated: the
// server is gone, and "connection refused" would seem to say that nothing was sent.
func TestNotRepeated(t *testing.T) {
	t.Parallel()
	const lease = backend.LeaseID("0123456789abcdef0123456789abcdef")
	for name, call := range map[string]func(b *remotelock.Backend) error{
		"acquire": func(b *remotelock.Backend) error {
			_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "x", Lease: lease, Timed: true, TTL: time.Minute})
			return err
		},
		"release": func(b *remotelock.Backend) error {
			return b.Release(t.Context(), backend.ReleaseRequest{Name: "x", Lease: lease})
		},
	} {
		var asked atomic.Int64
		var stop func() error
		b, s := serving(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost && r.Method != http.MethodDelete { // List, or the question for HTTP/2
				fmt.Fprint(w, `{"locks":[]}`)
				return
			}
			asked.Add(1)
			if err := stop(); err != nil {
				t.Error(err)
			}
			panic(http.ErrAbortHandler) // ends the connection
		})
		stop = s.Listener.Close
		if _, err := b.List(t.Context(), backend.ListRequest{Limit: 1}); err != nil { // so that there is a connection
			t.Fatal(err)
		}
		err := call(b)
		if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold {
			t.Errorf("%s: %v, want an unknown outcome", name, err)
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("%s: asked %d times, want once", name, n)
		}
	}
}
