package k8slock

import (
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// RecordsAtOnce is the maximum number of concurrent requests about locks of a value.
const RecordsAtOnce = recordsAtOnce

// OpenInPod is Open in a pod, whose service account is in the folder.
func OpenInPod(folder, host, port string) (*Backend, error) {
	config, namespace := podConfig(folder, host, port)
	return NewForConfig(config, Config{Namespace: namespace})
}

// SetIdle sets after how long a lock's object that is not in use is deleted. Call it before any
// other method.
func (b *Backend) SetIdle(d time.Duration) { b.idle = d }

// SetSafety sets after how long a waiter reads its lock although the watch reported nothing. Call it
// before any other method.
func (b *Backend) SetSafety(d time.Duration) { b.safety = d }

// Connections returns the number of open connections.
func (b *Backend) Connections() int { return b.owned.Open() }

// Writers returns the number of locks that something is remembered of here.
func (b *Backend) Writers() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.writers)
}

// Sessions returns the number of sessions that are remembered here.
func (b *Backend) Sessions() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.sessions)
}

// Age makes what was read of all locks older by d.
func (b *Backend) Age(d time.Duration) {
	b.cache.mu.Lock()
	defer b.cache.mu.Unlock()
	for _, seen := range b.cache.objects {
		seen.since = seen.since.Add(-d)
	}
}

// Overdue makes the session past its end here, as if its renewal had no answer.
func (b *Backend) Overdue(id backend.SessionID) {
	b.mu.Lock()
	s := b.sessions[id]
	b.mu.Unlock()
	s.extend(time.Now(), 0)
}
