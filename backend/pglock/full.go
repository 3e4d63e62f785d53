package pglock

import (
	"errors"
	"log/slog"
	"sync"
	"time"
)

// A listener that sleeps in a transaction, in any database of the server, keeps the server's queue of notifications from being
// emptied. When the queue is full every commit that notifies is refused. No lock depends on a notification, so such a transaction is
// repeated without any. Waiters poll from the moment at which the queue is half full, and watchers end: they would miss events.

const (
	codeQueueFull = "54000" // program_limit_exceeded
	// halfFull is an expression: whether the queue fills up.
	halfFull = `pg_notification_queue_usage() >= 0.5`
	// silence is how long nothing is notified after a refusal.
	silence = time.Second
)

var errQueueFull = errors.New("the server's queue of notifications fills up, because a listener sleeps in a transaction (see pg_notification_queue_usage)")

// notifier decides whether to notify. Its methods are safe for concurrent use.
type notifier struct {
	log  *slog.Logger
	name string // of the backend

	mu     sync.Mutex
	silent time.Time // until then nothing is notified
	logged time.Time
}

// sends reports whether to notify now.
func (n *notifier) sends() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !time.Now().Before(n.silent)
}

// refused reports whether err is that of a transaction that the server refused for its notifications. It can be repeated without
// them.
func (n *notifier) refused(err error) bool {
	if code(err) != codeQueueFull {
		return false
	}
	n.mu.Lock()
	n.silent = time.Now().Add(silence)
	n.mu.Unlock()
	n.warn()
	return true
}

// warn logs that the queue fills up, at most once a minute.
func (n *notifier) warn() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := time.Now(); n.logged.IsZero() || now.Sub(n.logged) >= time.Minute {
		n.logged = now
		n.log.Warn("notifications are not sent: waiters poll", slog.String("backend", n.name), slog.String("error", errQueueFull.Error()))
	}
}
