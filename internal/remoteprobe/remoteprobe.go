// Package remoteprobe lets the tests of remotelock that need our server, and so belong to another
// module, see and set what users of remotelock do not.
package remoteprobe

import (
	"context"
	"time"
)

// Probe is about one value of remotelock.Backend. It is safe for concurrent use.
type Probe struct {
	// SetPoll changes how long one request waits in the queue.
	SetPoll func(time.Duration)
	// SetLate changes how long a request holds back queued operations.
	SetLate func(time.Duration)
	// Queued returns the number of operations in the queue for the next batch.
	Queued func() int
	// Requests returns the number of requests that hold back queued operations.
	Requests func() int
	// MaxRequests is how many requests are in progress before operations share one, and MaxItems how
	// many of these a request has at most.
	MaxRequests, MaxItems int
}

type key struct{}

// With returns a context with which remotelock.Open fills p.
func With(ctx context.Context, p *Probe) context.Context { return context.WithValue(ctx, key{}, p) }

// From returns the Probe that is to be filled, or nil.
func From(ctx context.Context) *Probe {
	p, _ := ctx.Value(key{}).(*Probe)
	return p
}
