package k8slock

import "time"

// RecordsAtOnce is how many requests about locks a value has under way at most.
const RecordsAtOnce = recordsAtOnce

// OpenInPod is Open in a pod, whose service account is in the folder.
func OpenInPod(folder, host, port string) (*Backend, error) {
	c, err := inCluster(folder, host, port)
	if err != nil {
		return nil, err
	}
	return c.open(Config{})
}

// SetIdle sets after how long a lock's object is deleted that nobody needs. Before the first
// call.
func (b *Backend) SetIdle(d time.Duration) { b.idle = d }

// SetSafety sets after how long a waiter reads its lock though nothing was told. Before the
// first call.
func (b *Backend) SetSafety(d time.Duration) { b.safety = d }

// Flights is of how many locks something is remembered here.
func (b *Backend) Flights() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.flights)
}

// Age has what was read of all locks be older by d.
func (b *Backend) Age(d time.Duration) {
	b.mirror.mu.Lock()
	defer b.mirror.mu.Unlock()
	for _, seen := range b.mirror.objects {
		seen.since = seen.since.Add(-d)
	}
}
