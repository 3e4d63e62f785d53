package consullock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/seqlock"
	"github.com/holdfast-io/holdfast/internal/sessions"
)

const (
	// closePatience bounds how long the end of a session waits for Consul.
	closePatience = time.Second
	// leastDelay is the least lock-delay that the client library can request: tokens serve its
	// purpose.
	leastDelay = time.Millisecond
	// renewParts is the part of its TTL, as a divisor, that a renewal of a session may take at most
	// to check for breaks.
	renewParts = 6
	// longPoll is about how long Consul keeps a query open that waits for a change.
	longPoll = 5 * time.Minute
)

// session is a session of the contract and the session of Consul that it is tied to. It implements
// sessions.Peer.
type session struct {
	*sessions.Session

	b      *Backend
	uuid   string // Consul's name for it; empty: there is none yet
	leases *seqlock.Leases[struct{}]
	inbox  seqlock.Inbox
}

// lease is what is known of a lease of a session. Its Entry is its ID: see leaseKey.
type lease = seqlock.Lease[struct{}]

func (b *Backend) newSession(s *sessions.Session) *session {
	return &session{Session: s, b: b, leases: seqlock.NewLeases[struct{}](s, nil)}
}

// Leases are those of the session.
func (s *session) Leases() *seqlock.Leases[struct{}] { return s.leases }

// Open makes the session of Consul and its key for notices. What a failed attempt leaves has no leases
// and ends by itself.
func (s *session) Open(ctx context.Context) error {
	uuid, err := s.b.create(ctx, s.TTL)
	if err != nil {
		return err
	}
	s.uuid = uuid
	_, err = s.b.txn(ctx, api.KVTxnOps{{Verb: api.KVLock, Key: s.b.noticeKey(uuid), Session: uuid}})
	if err != nil {
		return err
	}
	return s.Extend()
}

// Run reports losses until the session has ended. Consul itself would end it after twice its TTL.
func (s *session) Run() {
	var hearing sync.WaitGroup
	select {
	case s.b.hearing <- struct{}{}:
		hearing.Go(s.hear)
		defer func() { <-s.b.hearing }()
	default: // a client has one session; only if many share a backend, the last learn of losses by their next renewal
	}
	s.Keep(nil)
	hearing.Wait()
}

// Renew renews the session, and then checks for breaks, which are pushed, but the connection for that may be dead; and
// for keys of held leases that were deleted by hand. Nothing reports such a deletion, and other clients may have the
// lock then. One request checks as many as fit into it; if more are held, a random selection.
func (s *session) Renew(ctx context.Context) error {
	asking, answered := answering(ctx)
	entry, _, err := s.b.client.Session().Renew(s.uuid, (&api.WriteOptions{}).WithContext(asking))
	answered()
	if err == nil && entry == nil {
		err = s.confirmGone(ctx)
	}
	if err == nil {
		err = s.Extend()
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.TTL/renewParts)
	defer cancel()
	held := s.leases.Held()
	gone, _ := s.absent(ctx, held[:min(len(held), maxTxnOps)]) // another time
	_, err = s.read(ctx, 0)
	if errors.Is(err, backend.ErrSessionLost) {
		return err
	}
	if err == nil { // otherwise a break would be reported as CauseGone
		s.tellGone(gone)
	}
	return nil // the renewal itself was answered
}

// confirmGone checks whether the session is gone, after an answer by a leader that may have been
// too new to know it. ErrSessionLost: it is.
func (s *session) confirmGone(ctx context.Context) error {
	ctx, cancel := answering(ctx)
	defer cancel()
	entry, _, err := s.b.client.Session().Info(s.uuid, consistent(ctx))
	switch {
	case err != nil:
		return err
	case entry != nil:
		return errors.New("the leader did not have the session yet")
	}
	s.Expire(backend.CauseGone)
	return backend.ErrSessionLost
}

// End ends the session in Consul.
func (s *session) End(ctx context.Context) error {
	if s.uuid == "" {
		return nil
	}
	ctx, cancel := answering(ctx)
	defer cancel()
	_, err := s.b.client.Session().Destroy(s.uuid, (&api.WriteOptions{}).WithContext(ctx))
	return err
}

// Bury retries until the session is ended, Consul has ended it by itself, or the backend is closed.
func (s *session) Bury() bool {
	for failures := 0; ; failures++ {
		ctx, cancel := context.WithTimeout(context.Background(), closePatience)
		err := s.End(ctx)
		cancel()
		if err == nil || s.Expired() {
			return true
		}
		s.b.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "a session has not ended in Consul yet", slog.String("error", err.Error()))
		if !pause(s.b.sessions.Base(), failures) {
			return false
		}
	}
}
