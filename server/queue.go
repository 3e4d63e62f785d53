package server

import (
	"container/list"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// queue counts the requests that wait here, and the places that are kept for clients that poll,
// for the limit and for the metrics. The order of the queue is the backend's.
type queue struct {
	mu       sync.Mutex
	waiting  map[string]int                     // requests
	leases   map[string]map[backend.LeaseID]int // requests and kept places; "" if the server makes the ID
	ages     *list.List                         // time.Time, oldest first: of each lease, or of a request whose ID the server makes
	since    map[leaseKey]*list.Element         // the age of a lease that the client made: several requests may wait for it in turn
	released map[string]time.Time               // when a lock with waiters was last released here
	empties  []chan struct{}                    // see emptied
}

func newLine() *queue {
	return &queue{
		waiting: make(map[string]int), leases: make(map[string]map[backend.LeaseID]int),
		ages: list.New(), since: make(map[leaseKey]*list.Element), released: make(map[string]time.Time),
	}
}

// join counts one more waiting request for the lock, unless there are limit already. A request
// for the lease of a kept place uses that place. The function that join returns ends the count.
func (l *queue) join(name string, lease backend.LeaseID, limit int) (func(), bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	again := lease != "" && l.leases[name][lease] > 0
	if l.waiting[name] >= limit || !again && l.places(name) >= limit {
		return nil, false
	}
	l.waiting[name]++
	l.add(name, lease)
	var age *list.Element
	if lease == "" {
		age = l.ages.PushBack(time.Now())
	}
	return func() { l.leave(name, lease, age) }, true
}

// keep counts a kept place of a lease until the function that it returns is called.
func (l *queue) keep(name string, lease backend.LeaseID) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(name, lease)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.remove(name, lease)
	}
}

// places returns the number of places: a lease has one, however many requests are for it.
func (l *queue) places(name string) int {
	all := l.leases[name]
	return len(all) + max(0, all[""]-1)
}

func (l *queue) add(name string, lease backend.LeaseID) {
	if l.leases[name] == nil {
		l.leases[name] = make(map[backend.LeaseID]int)
	}
	if l.leases[name][lease]++; l.leases[name][lease] == 1 && lease != "" {
		l.since[leaseKey{name, lease}] = l.ages.PushBack(time.Now())
	}
}

func (l *queue) remove(name string, lease backend.LeaseID) {
	all := l.leases[name]
	if all[lease]--; all[lease] == 0 {
		delete(all, lease)
		if age := l.since[leaseKey{name, lease}]; age != nil {
			l.ages.Remove(age)
			delete(l.since, leaseKey{name, lease})
		}
	}
	if len(all) == 0 {
		delete(l.leases, name)
	}
}

// alone reports whether at most one request waits here for the lock.
func (l *queue) alone(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting[name] <= 1
}

func (l *queue) leave(name string, lease backend.LeaseID, age *list.Element) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(name, lease)
	if age != nil {
		l.ages.Remove(age)
	}
	if l.waiting[name]--; l.waiting[name] == 0 {
		delete(l.waiting, name)
		delete(l.released, name)
		l.notifyEmptyLocked()
	}
}

// emptied returns a channel that is closed as soon as no request waits here.
func (l *queue) emptied() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	empty := make(chan struct{})
	l.empties = append(l.empties, empty)
	l.notifyEmptyLocked()
	return empty
}

func (l *queue) notifyEmptyLocked() {
	if len(l.waiting) > 0 {
		return
	}
	for _, empty := range l.empties {
		close(empty)
	}
	l.empties = nil
}

// oldest returns for how long the waiter has waited that came first. A client that polls for one
// lease, with a place that is kept in between, is one waiter.
func (l *queue) oldest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	front := l.ages.Front()
	if front == nil {
		return 0
	}
	since, _ := front.Value.(time.Time)
	return time.Since(since)
}

// release notes that a lock was released, to measure the hand-over time.
func (l *queue) release(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting[name] > 0 {
		l.released[name] = time.Now()
	}
}

// handover returns the time since the release that made this grant possible, if the release was
// seen here.
func (l *queue) handover(name string) (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.released[name]
	delete(l.released, name)
	return time.Since(at), ok
}
