package redlock

import (
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// listener keeps the subscriptions at one node: one connection for all locks that this
// Backend waits for, from its first wait on.
type listener struct {
	b    *Backend
	i    int
	link link

	mu      sync.Mutex
	wanted  map[string]bool // channels
	changed chan struct{}   // capacity 1
}

// want adds a channel to the subscriptions, or removes it. It does not block.
func (e *listener) want(channel string, yes bool) {
	e.mu.Lock()
	if yes {
		e.wanted[channel] = true
	} else {
		delete(e.wanted, channel)
	}
	e.mu.Unlock()
	select {
	case e.changed <- struct{}{}:
	default: // a signal is pending already
	}
}

// run connects, and reconnects, until the Backend is closed.
func (e *listener) run() {
	for pause := firstProbe; ; pause = min(2*pause, lastProbe) {
		began := time.Now()
		e.receive()
		e.b.deaf(e.i)
		if time.Since(began) > lastProbe {
			pause = firstProbe
		}
		if !retry.Pause(e.b.base, retry.About(pause)) {
			return
		}
	}
}

// receive runs one connection, until it breaks or the Backend is closed.
func (e *listener) receive() {
	conn, err := e.link.listen(
		func(channel, message string) { e.b.heard(e.i, channel, message) },
		func(channel string) { e.b.confirmed(e.i, channel) })
	if err != nil {
		return
	}
	defer conn.Close()
	have, ended := make(map[string]bool), conn.Ended()
	for {
		if err := e.adjust(conn, have); err != nil {
			return
		}
		select {
		case <-e.changed:
		case why := <-ended:
			e.b.cfg.Logger.LogAttrs(e.b.base, slog.LevelDebug, "redlock: a subscription broke", slog.Int("node", e.i+1), slog.Any("error", why))
			return
		case <-e.b.base.Done():
			return
		}
	}
}

// adjust subscribes to the wanted channels, and unsubscribes from the others.
func (e *listener) adjust(conn *program.Subscription, have map[string]bool) error {
	var more, less []string
	e.mu.Lock()
	for c := range e.wanted {
		if !have[c] {
			more = append(more, c)
		}
	}
	for c := range have {
		if !e.wanted[c] {
			less = append(less, c)
		}
	}
	e.mu.Unlock()
	ctx, cancel := backend.WithTimeout(e.b.base, e.b.cfg.RequestTimeout)
	defer cancel()
	if len(more) > 0 {
		if err := conn.Add(ctx, more...); err != nil {
			return err
		}
	}
	if len(less) > 0 {
		if err := conn.Remove(ctx, less...); err != nil {
			return err
		}
	}
	for _, c := range more {
		have[c] = true
	}
	for _, c := range less {
		delete(have, c)
	}
	return nil
}
