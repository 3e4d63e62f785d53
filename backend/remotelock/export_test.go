package remotelock

import "time"

// SetPoll changes how long one request stands in line.
func (b *Backend) SetPoll(d time.Duration) { b.poll = d }

// SetLate changes how long a request keeps others from leaving.
func (b *Backend) SetLate(d time.Duration) {
	b.together.mu.Lock()
	defer b.together.mu.Unlock()
	b.together.late = d
}

// Queued counts the operations that wait for others to answer before they leave.
func (b *Backend) Queued() int {
	b.together.mu.Lock()
	defer b.together.mu.Unlock()
	return len(b.together.queue)
}

// Flights counts the requests that keep others from leaving.
func (b *Backend) Flights() int {
	b.together.mu.Lock()
	defer b.together.mu.Unlock()
	return b.together.flights
}

// Limits of one batch, and how many requests are under way before others travel together.
const (
	MaxFlights = maxFlights
	MaxItems   = maxItems
)
