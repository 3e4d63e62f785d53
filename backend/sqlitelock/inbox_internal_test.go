//go:build linux || darwin || freebsd

package sqlitelock

import (
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

func inboxIn(t *testing.T, dir, name string) *inbox {
	t.Helper()
	m, err := openInbox(dir, name, ownerOnly)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.close() })
	return m
}

// received returns what the inbox asks to read until nothing arrives any more.
func received(t *testing.T, m *inbox) notification {
	t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var all notification
	if err := m.receive(func(l notification) { all.add(&l) }); err == nil {
		t.Fatal("receive ended without an error")
	}
	return all
}

// Processes that are stopped do not read their inboxes. The others get their notifications.
func TestNotificationsBesideTheStopped(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "wake")
	sender := inboxIn(t, dir, "sender")
	const stopped, each = 40, 20
	for i := range stopped {
		name := "stopped" + strconv.Itoa(i)
		inboxIn(t, dir, name)
		for range each {
			sender.send(name, eventsLine)
		}
	}
	alive := inboxIn(t, dir, "alive")
	sender.send("alive", eventsLine)
	if l := received(t, alive); !l.events {
		t.Errorf("%+v", l)
	}
}

// A process that was stopped for a moment reads everything when its inbox had no room for a notification, and what
// they name else.
func TestFullInbox(t *testing.T) {
	t.Parallel()
	for _, sent := range []int{1, crowded - 1, 5000} {
		dir := filepath.Join(t.TempDir(), "wake")
		sender, m := inboxIn(t, dir, "sender"), inboxIn(t, dir, "m")
		for i := range sent {
			sender.send("m", waiters.LeaseLine(lockstate.Key{Name: strconv.Itoa(i), ID: "id"}))
		}
		l := received(t, m)
		if all := sent >= crowded; l.All != all || !all && len(l.Leases) != sent {
			t.Errorf("%d were sent: %t, %d", sent, l.All, len(l.Leases))
		}
	}
}

// FuzzNotification checks that lines that are read are no more than were sent.
func FuzzNotification(f *testing.F) {
	for _, s := range []string{"", allLine, eventsLine, "lAAAA\tname\nsBBBB\n", "l\n", "l\t\n", "s", "?\n\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, lines string) {
		var l, again notification
		l.parse(lines)
		for k := range l.Leases {
			again.parse(waiters.LeaseLine(k))
		}
		for id := range l.Sessions {
			again.parse(waiters.SessionLine(id))
		}
		if len(again.Leases) != len(l.Leases) || len(again.Sessions) != len(l.Sessions) || again.All || again.events {
			t.Errorf("%q is %+v, and then %+v", lines, l, again)
		}
	})
}
