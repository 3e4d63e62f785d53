package zklock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/seqlock"
	"github.com/holdfast-io/holdfast/internal/sessions"
)

// session is a session of the contract and the ZooKeeper session that it is tied to. It implements
// sessions.Peer.
type session struct {
	*sessions.Session

	b       *Backend
	link    *link // nil: there is none yet
	batcher batcher
	leases  *seqlock.Leases[handOver]

	ending sync.Once     // of the link
	closed chan struct{} // closed when the attempt to end it in the ensemble has ended
	gone   bool          // it has ended there; read after closed is closed

	entries map[spot]*lease // of exclusive leases; guarded by the mutex of leases

	mu      sync.Mutex // guards the fields below
	contact contact
	checks  []seqlock.Key // held leases whose entries have yet to be checked in this round
}

const (
	opOpen    = "open session"
	opRenew   = "renew"
	opAcquire = "acquire"
)

func (b *Backend) newSession(base *sessions.Session) *session {
	s := &session{Session: base, b: b, closed: make(chan struct{}), entries: make(map[spot]*lease)}
	s.leases = seqlock.NewLeases(base, s.unplace)
	return s
}

// Leases are those of the session.
func (s *session) Leases() *seqlock.Leases[handOver] { return s.leases }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Open makes the ZooKeeper session and its nodes.
func (s *session) Open(ctx context.Context) error {
	asked := (s.TTL + s.b.cfg.margin() + time.Millisecond - 1).Truncate(time.Millisecond) // in whole milliseconds, ZooKeeper's unit
	l, err := newLink(&s.b.cfg, asked, max(silence, 2*s.b.cfg.Tick))                      // it sends something every half tick
	if err != nil {
		return err
	}
	s.link, s.batcher.link = l, l
	if err := l.await(ctx); err != nil {
		return &unsent{err}
	}
	if given := time.Duration(l.given.Load()); given < asked {
		return &backend.InvalidError{
			Field: "ttl", Value: s.TTL.String(),
			Bound: "at most " + max(0, given-s.b.cfg.margin()).String() + ", the ensemble's longest session less a margin",
		}
	}
	if err := s.b.makeNodes(ctx, l); err != nil {
		return err
	}
	if err := s.enroll(ctx); err != nil {
		return err
	}
	now := time.Now()
	s.contact = contact{answered: now, since: now.Add(-s.b.cfg.Tick)} // the leader itself has made it
	return s.Extend()
}

// enroll makes the nodes of the session. Those of an attempt that was given up may exist: its
// ZooKeeper session is another one, and has no leases.
func (s *session) enroll(ctx context.Context) error {
	paths := []string{s.b.sessionPath(s.ID), s.b.noticePath(s.ID)}
	acl := s.b.cfg.acl()
	create := func(before ...any) error {
		_, err := call(ctx, s.link, func() ([]zk.MultiResponse, error) {
			return s.link.conn.Multi(append(before,
				&zk.CreateRequest{Path: paths[0], Acl: acl, Flags: zk.FlagEphemeral},
				&zk.CreateRequest{Path: paths[1], Acl: acl, Flags: zk.FlagEphemeral})...)
		})
		return err
	}
	err := create()
	if !errors.Is(err, zk.ErrNodeExists) {
		return err
	}
	// In one transaction: if another backend value has the session, it must not miss its nodes.
	err = create(&zk.DeleteRequest{Path: paths[0], Version: -1}, &zk.DeleteRequest{Path: paths[1], Version: -1})
	if errors.Is(err, zk.ErrNoNode) { // they went with that session
		err = create()
	}
	return err
}

// Renew is a write, so that the leader has seen it: a server that has lost its leader still answers
// reads for a while.
func (s *session) Renew(ctx context.Context) error {
	for steady, first := false, true; !steady; first = false {
		err := s.settled(ctx)
		sent := time.Now()
		var stat *zk.Stat
		if err == nil {
			stat, err = s.link.touch(ctx, s.b.sessionPath(s.ID))
		}
		if errors.Is(err, zk.ErrNoNode) {
			s.Expire(backend.CauseGone)
			return backend.ErrSessionLost
		}
		if err != nil && !first {
			err = backend.PartDone(name, opRenew, s.b.fail(ctx, opRenew, err, true))
		}
		if err != nil {
			return err
		}
		s.b.sawClock(stat)
		steady = s.heard(sent)
	}
	return s.Extend()
}

// Run reports losses, and sends the ensemble signs of life, until the session has ended.
func (s *session) Run() {
	var all sync.WaitGroup
	all.Go(s.hear)
	all.Go(s.signal)
	s.Keep(s.link.life.Done()) // when the ensemble has reported that the session expired
	all.Wait()
}

// silence is the least time that a server may send nothing at all to a session.
const silence = 10 * time.Second

// beatsAtOnce is how many beats may be unanswered: a slow ensemble answers as steadily as any
// other, only later.
const beatsAtOnce = 8

// signal sends the ensemble a sign of life every half tick: see Config.margin.
func (s *session) signal() {
	beat := time.NewTicker(s.b.cfg.Tick / 2)
	defer beat.Stop()
	var beats sync.WaitGroup
	defer beats.Wait()
	busy := make(chan struct{}, beatsAtOnce)
	for {
		select {
		case <-s.Life.Done():
			return
		case <-beat.C:
		}
		select {
		case busy <- struct{}{}:
			beats.Go(func() {
				defer func() { <-busy }()
				if s.beat() == nil {
					s.heard(time.Now())
				}
			})
		default: // they are not answered
		}
	}
}

var errUntold = errors.New("the ensemble has not confirmed the end of the session: its leases may be held until it expires")

// Bury ends the session in the ensemble, which takes at most three seconds.
func (s *session) Bury() bool {
	s.ending.Do(func() {
		s.gone = s.link == nil || s.link.close()
		close(s.closed)
	})
	return s.gone
}

// End ends the session in the ensemble. If that was tried before, it checks whether it has ended there.
func (s *session) End(ctx context.Context) error {
	first := !isClosed(s.closed)
	s.b.sessions.Go(func() { s.Bury() })
	select {
	case <-s.closed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch {
	case s.gone:
		return nil
	case first:
		return errUntold
	}
	return s.confirm(ctx)
}

// confirm checks whether the session has ended in the ensemble. The write lets the server catch up
// with the leader, if the leader is one.
func (s *session) confirm(ctx context.Context) error {
	l, err := s.b.controlLink(ctx)
	if err != nil {
		return err
	}
	if _, err := l.touch(ctx, s.b.locksPath()); err != nil {
		return err
	}
	stat, err := l.stat(ctx, s.b.sessionPath(s.ID))
	if err == nil && stat != nil {
		err = errUntold
	}
	return err
}
