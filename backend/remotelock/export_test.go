package remotelock

import "time"

// SetPoll changes how long one request waits in the queue.
func (b *Backend) SetPoll(d time.Duration) { b.poll = d }

// SetLate changes how long a request holds back queued operations.
func (b *Backend) SetLate(d time.Duration) {
	b.together.mu.Lock()
	defer b.together.mu.Unlock()
	b.together.late = d
}

// Queued returns the number of operations in the queue for the next batch.
func (b *Backend) Queued() int {
	b.together.mu.Lock()
	defer b.together.mu.Unlock()
	return len(b.together.queue)
}

// Requests returns the number of requests that hold back queued operations.
func (b *Backend) Requests() int {
	b.together.mu.Lock()
	defer b.together.mu.Unlock()
	return b.together.requests
}

// Limits of one batch, and how many requests are in progress before operations share one.
const (
	MaxRequests = maxRequests
	MaxItems    = maxItems
)
