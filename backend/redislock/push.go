package redislock

import (
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// push is a notification from the script to a client, on the client's one channel.
type push struct {
	kind    pushKind
	lease   backend.LeaseID
	session backend.SessionID
	token   fence.Token
	since   time.Time
	timed   bool
	why     string // of a dropped waiter: "S" its session is lost, "L" it was released
	cause   backend.Cause
	reason  string
	left    time.Duration
}

type pushKind byte

const (
	pushGrant   pushKind = 'g' // a waiter has the lock
	pushDropped pushKind = 'd' // a waiter left the queue without it
	pushAdopted pushKind = 'a' // the place of a waiter is that of another session now
	pushLoss    pushKind = 'l' // a lease, or without one a session, is lost
	pushTimer   pushKind = 't' // how soon what is ahead of a waiter can end
	pushFlushed pushKind = 'f' // the server lost its data
)

// parsePush parses a notification. It returns false for one that the script does not send:
// any client may publish on a channel.
func parsePush(payload string) (push, bool) {
	f := strings.Split(payload, "\n")
	d := decode(nil)
	p := push{}
	if len(f[0]) != 1 {
		return push{}, false
	}
	p.kind = pushKind(f[0][0])
	switch {
	case p.kind == pushGrant && len(f) == 5:
		p.lease, p.timed = backend.LeaseID(f[1]), f[4] == "1"
		p.token = fence.Token(d.Parse(f[2])) //nolint:gosec // not negative
		p.since = time.UnixMicro(d.Parse(f[3]))
	case p.kind == pushDropped && len(f) == 3:
		p.lease, p.why = backend.LeaseID(f[1]), f[2]
	case p.kind == pushAdopted && len(f) == 3:
		p.lease, p.session = backend.LeaseID(f[1]), backend.SessionID(f[2])
	case p.kind == pushLoss && len(f) == 5:
		p.session, p.lease, p.cause, p.reason = backend.SessionID(f[1]), backend.LeaseID(f[2]), backend.Cause(f[3]), f[4]
	case p.kind == pushTimer && len(f) == 3:
		p.lease, p.left = backend.LeaseID(f[1]), d.Duration(d.Parse(f[2]))
	case p.kind == pushFlushed && len(f) == 1:
	default:
		return push{}, false
	}
	return p, d.Err == nil
}

// parseEvent parses a message of the event channel.
func parseEvent(payload string) (backend.Event, bool) {
	f := strings.Split(payload, "\n")
	const fields = 8
	if len(f) != fields {
		return backend.Event{}, false
	}
	d := decode(nil)
	e := backend.Event{
		Kind: backend.EventKind(f[0]), Name: f[1], Lease: backend.LeaseID(f[2]), Owner: f[3], Mode: d.Mode(f[4]),
		Token: fence.Token(d.Parse(f[5])), //nolint:gosec // not negative
		At:    time.UnixMicro(d.Parse(f[6])), Reason: f[7],
	}
	return e, d.Err == nil
}
