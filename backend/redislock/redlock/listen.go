package redlock

import (
	"log/slog"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// listen keeps the subscriptions at the node: one connection for all locks that this Backend
// waits for, until it is closed.
func (n *node) listen() {
	for pause := firstProbe; ; pause = min(2*pause, lastProbe) {
		began := time.Now()
		n.receive()
		n.deaf()
		if time.Since(began) > lastProbe {
			pause = firstProbe
		}
		if !retry.Pause(n.b.base, retry.About(pause)) {
			return
		}
	}
}

// receive runs one connection, until it breaks or the Backend is closed.
func (n *node) receive() {
	conn, err := n.link.listen(
		func(channel, lease string) { n.b.heard(n.i, n.b.lockOf(channel), backend.LeaseID(lease)) },
		func(channel string) { n.confirmed(n.b.lockOf(channel)) })
	if err != nil {
		return
	}
	defer conn.Close()
	ended := conn.Ended()
	for {
		if err := n.adjust(conn); err != nil {
			return
		}
		select {
		case <-n.changed:
		case why := <-ended:
			n.b.cfg.Logger.LogAttrs(n.b.base, slog.LevelDebug, "redlock: a subscription broke", slog.Int("node", n.i+1), slog.Any("error", why))
			return
		case <-n.b.base.Done():
			return
		}
	}
}

// adjust subscribes to the locks that are waited for, and unsubscribes from the others.
func (n *node) adjust(conn *program.Subscription) error {
	more, less := n.difference()
	ctx, cancel := backend.WithTimeout(n.b.base, n.b.cfg.RequestTimeout)
	defer cancel()
	if len(more) > 0 {
		if err := conn.Add(ctx, more...); err != nil {
			return err
		}
	}
	if len(less) > 0 {
		return conn.Remove(ctx, less...)
	}
	return nil
}

// difference returns the channels to subscribe to and those to unsubscribe from, and records that this was sent.
func (n *node) difference() ([]string, []string) {
	var more, less []string
	n.b.mu.Lock()
	defer n.b.mu.Unlock()
	for name, l := range n.b.queues {
		if _, sent := n.channels[name]; l.wanted && !sent {
			n.channels[name] = false
			more = append(more, n.b.channel(name))
		}
	}
	for name := range n.channels {
		if l := n.b.queues[name]; l == nil || !l.wanted {
			delete(n.channels, name)
			less = append(less, n.b.channel(name))
		}
	}
	return more, less
}

// confirmed is called when the node has confirmed the subscription to a lock. Once a majority
// has, another round is run: a release may have been published before.
func (n *node) confirmed(name string) {
	n.b.mu.Lock()
	defer n.b.mu.Unlock()
	if _, sent := n.channels[name]; !sent {
		return
	}
	n.channels[name] = true
	if l := n.b.queues[name]; l != nil && n.b.subscribed(name) {
		l.wake()
	}
}

// deaf is called when the subscriptions at the node have ended.
func (n *node) deaf() {
	n.b.mu.Lock()
	defer n.b.mu.Unlock()
	clear(n.channels)
}

// channel is where releases of a lock are published.
func (b *Backend) channel(lock string) string { return b.key("w:" + lock) }

func (b *Backend) lockOf(channel string) string { return strings.TrimPrefix(channel, b.channel("")) }
