package backendtest

import (
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

type option func(*backend.AcquireRequest)

func shared(r *backend.AcquireRequest) { r.Mode = backend.Shared }

func permits(limit, k int) option {
	return func(r *backend.AcquireRequest) { r.Mode, r.Limit, r.Permits = backend.Shared, limit, k }
}

// timed makes the request one for a lease with its own end.
func timed(ttl time.Duration) option {
	return func(r *backend.AcquireRequest) { r.Timed, r.TTL = true, ttl }
}

func owner(s string) option { return func(r *backend.AcquireRequest) { r.Owner = s } }

func note(s string) option { return func(r *backend.AcquireRequest) { r.Note = s } }
