package server

import (
	"container/list"
	"sync"
	"time"
)

// line counts the requests that wait here, for the limit and for the metrics.
// The order of the line is the backend's.
type line struct {
	mu       sync.Mutex
	waiting  map[string]int
	ages     *list.List           // time.Time, oldest first
	released map[string]time.Time // when a lock with waiters was last released here
}

func newLine() *line {
	return &line{waiting: make(map[string]int), ages: list.New(), released: make(map[string]time.Time)}
}

// join counts one more who waits for the lock, unless there are limit already. The
// function that it gives counts one less.
func (l *line) join(name string, limit int) (func(), bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting[name] >= limit {
		return nil, false
	}
	l.waiting[name]++
	age := l.ages.PushBack(time.Now())
	return func() { l.leave(name, age) }, true
}

// alone reports whether no more than one request waits here for the lock.
func (l *line) alone(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting[name] <= 1
}

func (l *line) leave(name string, age *list.Element) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ages.Remove(age)
	if l.waiting[name]--; l.waiting[name] == 0 {
		delete(l.waiting, name)
		delete(l.released, name)
	}
}

// oldest is the age of the one who waits longest.
func (l *line) oldest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	front := l.ages.Front()
	if front == nil {
		return 0
	}
	since, _ := front.Value.(time.Time)
	return time.Since(since)
}

// release notes that a lock was released, for the time that the hand-over takes.
func (l *line) release(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting[name] > 0 {
		l.released[name] = time.Now()
	}
}

// handover gives the time since the release that let this grant be, if that was
// seen here.
func (l *line) handover(name string) (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.released[name]
	delete(l.released, name)
	return time.Since(at), ok
}
