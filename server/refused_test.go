package server_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/server"
)

// refusing is a store that refuses what needs a right. why is the error below the refusal.
type refusing struct {
	backend.Backend
	why error
}

func (r refusing) Acquire(context.Context, backend.AcquireRequest) (backend.Grant, error) {
	return backend.Grant{}, &backend.UnavailableError{Backend: "memory", Op: "acquire", Err: connect.Lacks("memory", "to write", r.why)}
}

// A client of the server learns what the store of the server refuses, and what an operator can do.
func TestRefusedOverHTTP(t *testing.T) {
	t.Parallel()
	for _, why := range []error{errAway, &backend.InvalidError{Field: "credentials", Value: "as given", Bound: "allowed to do this"}} {
		refusedOverHTTP(t, why)
	}
}

func refusedOverHTTP(t *testing.T, why error) {
	t.Helper()
	a := serve(t, &faulty{Backend: refusing{memlock.NewStore().Open(), why}}, server.Config{})
	b, err := remotelock.Open(t.Context(), strings.Replace(a.base, "http:", "holdfast:", 1), remotelock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	_, err = b.Acquire(t.Context(), backend.AcquireRequest{Name: "a", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute})
	no, ok := errors.AsType[*backend.RefusedError](err)
	if !ok || no.Backend != "memory" || !strings.Contains(no.Reason, "to write") || !strings.Contains(no.Remedy, "docs/backends/memory.md") {
		t.Errorf("%v", err)
	}
	if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || away.MayHold {
		t.Errorf("%+v", away)
	}
}
