package pglock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// patience is for what must happen, on a machine however busy.
const patience = time.Minute

// open opens a backend that the test closes.
func open(t *testing.T, url string) *pglock.Backend {
	t.Helper()
	b, err := pglock.Open(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	t.Cleanup(cancel)
	return ctx
}

func session(t *testing.T, b *pglock.Backend, ttl time.Duration, lost func(backend.Loss)) backend.SessionID {
	t.Helper()
	id := backend.NewSessionID()
	if err := b.OpenSession(within(t), backend.SessionRequest{ID: id, TTL: ttl, Lost: lost}); err != nil {
		t.Fatalf("open session: %v", err)
	}
	return id
}

func ask(name string, id backend.SessionID) backend.AcquireRequest {
	return backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Session: id, Wait: true}
}

func take(t *testing.T, b *pglock.Backend, req backend.AcquireRequest) fence.Token {
	t.Helper()
	g, err := b.Acquire(within(t), req)
	if err != nil {
		t.Fatalf("acquire %q: %v", req.Name, err)
	}
	return g.Token
}

func give(t *testing.T, b *pglock.Backend, req backend.AcquireRequest) {
	t.Helper()
	if err := b.Release(within(t), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: req.Session}); err != nil {
		t.Fatalf("release %q: %v", req.Name, err)
	}
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

func inLine(t *testing.T, b *pglock.Backend, name string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d in line for %q", n, name), func() bool {
		info, err := b.Inspect(within(t), name)
		return err == nil && len(info.Waiters) == n
	})
}

// grantOf is what an Acquire under way will have.
type grantOf struct {
	grant backend.Grant
	err   error
}

func start(t *testing.T, b *pglock.Backend, req backend.AcquireRequest) <-chan grantOf {
	t.Helper()
	ctx := within(t)
	got := make(chan grantOf, 1)
	go func() {
		g, err := b.Acquire(ctx, req)
		got <- grantOf{g, err}
	}()
	return got
}

// C14, K6: the replies are held for longer than the lease lives. It is not granted.
func TestHeldReplies(t *testing.T) {
	t.Parallel()
	const ttl = 300 * time.Millisecond
	server := testserver.Postgres(t)
	proxy := chaos.Start(t, server.Addr())
	b, other := open(t, server.URLOf("postgres", proxy.Addr())), open(t, server.URL())
	session(t, b, time.Minute, nil) // the tables are there, and a connection
	proxy.Hold(chaos.Replies)
	req := backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Timed: true, TTL: ttl}
	got := start(t, b, req)
	time.AfterFunc(2*ttl, func() { proxy.Release(chaos.Replies) })
	if g := <-got; !errors.Is(g.err, backend.ErrLost) {
		t.Errorf("granted after %s: %+v, %v", 2*ttl, g.grant, g.err)
	}
	if info, err := other.Inspect(within(t), "n"); err != nil || len(info.Holders) != 0 {
		eventually(t, "the lease ends", func() bool {
			info, err = other.Inspect(within(t), "n")
			return err == nil && len(info.Holders) == 0
		})
	}
}

// B: the reply to the commit is lost. It is said that the lease may be held, and the
// same lease asked again is the same grant.
func TestLostCommitReply(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	proxy := chaos.Start(t, s.Addr())
	b, other := open(t, s.URLOf("postgres", proxy.Addr())), open(t, s.URL())
	id := session(t, b, time.Minute, nil)
	req := ask("n", id)
	req.Note = "only in the statement that writes it"
	lost := proxy.LoseReply(func(piece []byte) bool { return bytes.Contains(piece, []byte(req.Note)) })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := b.Acquire(ctx, req)
	<-lost
	var away *backend.UnavailableError
	if !errors.As(err, &away) || !away.MayHold {
		t.Fatalf("Acquire whose reply was lost: %v; it has to say that the lease may be held", err)
	}
	proxy.Heal()
	info, err := other.Inspect(within(t), "n")
	if err != nil || len(info.Holders) != 1 {
		t.Fatalf("Inspect: %+v, %v; the lease is held", info, err)
	}
	if again := take(t, b, req); again != info.Holders[0].Token {
		t.Errorf("the same Acquire gave token %d, then %d", info.Holders[0].Token, again)
	}
	give(t, b, req)
}

// F10: an operator terminates all our connections, the one that listens among them. A
// waiter is granted its lock, and nobody else sees an error.
func TestConnectionsTerminated(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	holder, b := open(t, s.URL()), open(t, s.URL()+"&application_name=victim")
	lost := make(chan backend.Loss, 1)
	mine, theirs := session(t, holder, time.Hour, nil), session(t, b, time.Hour, func(x backend.Loss) { lost <- x })
	kept := ask("kept", theirs)
	take(t, b, kept)
	held := ask("n", mine)
	take(t, holder, held)
	for range 3 {
		waits := ask("n", theirs)
		got := start(t, b, waits)
		inLine(t, holder, "n", 1)
		eventually(t, "it listens", func() bool {
			return s.Int(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'victim' AND query LIKE 'LISTEN%' AND state = 'idle'`) == 1
		})
		if n := s.Int(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'victim'`); n < 1 {
			t.Fatalf("%d connections of the victim", n)
		}
		from := time.Now()
		give(t, holder, held)
		if g := <-got; g.err != nil {
			t.Fatal(g.err)
		}
		if took := time.Since(from); took > 10*time.Second {
			t.Errorf("the hand-over took %s", took)
		}
		held = ask("n", mine)
		next := start(t, holder, held)
		give(t, b, waits)
		if g := <-next; g.err != nil {
			t.Fatal(g.err)
		}
	}
	// What is said while nobody listens is told all the same.
	s.Int(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'victim'`)
	if _, err := holder.Break(within(t), backend.BreakRequest{Name: "kept", Reason: "why"}); err != nil {
		t.Fatal(err)
	}
	select {
	case x := <-lost:
		if x.Lease != kept.Lease || x.Reason != "why" {
			t.Errorf("told %+v", x)
		}
	case <-time.After(patience):
		t.Error("the loss was not told")
	}
}

// F8: a process sleeps in the middle of a transaction, with the rows of its locks
// locked. The server ends its connection, and the others go on.
func TestSleeperInTransaction(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	proxy := chaos.Start(t, s.Addr())
	sleeper, b := open(t, s.URLOf("postgres", proxy.Addr())), open(t, s.URL())
	session(t, sleeper, time.Minute, nil)
	awake := session(t, b, time.Minute, nil)
	give(t, b, func() backend.AcquireRequest { r := ask("n", awake); take(t, b, r); return r }())

	// Its transaction waits for the row, and when it has that its client is not there.
	conn, err := pgx.Connect(within(t), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(within(t))
	if _, err := conn.Exec(within(t), `BEGIN; SELECT FROM holdfast.locks WHERE name = 'n' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	ctx := within(t)
	go func() {
		got <- sleeper.Release(ctx, backend.ReleaseRequest{Name: "n", Lease: backend.NewLeaseID(), Abandon: true})
	}()
	eventually(t, "the transaction waits", func() bool {
		return s.Int(`SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'`) > 0
	})
	proxy.Hold(chaos.Replies)
	if _, err := conn.Exec(within(t), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it sleeps with the row locked", func() bool {
		return s.Int(`SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'`) > 0
	})
	other := ask("another", awake)
	from := time.Now()
	take(t, b, other)
	if took := time.Since(from); took > 3*time.Second {
		t.Errorf("another lock was had after %s", took)
	}
	mine := ask("n", awake)
	take(t, b, mine)
	t.Logf("the lock was had after %s", time.Since(from))
	proxy.Heal()
	proxy.Reset()
	if err := <-got; err != nil { // it asks again
		t.Error(err)
	}
	give(t, b, mine)
}

// C12: the server is gone. A call ends with its context, and says whether the lease may
// be held; Close returns.
func TestServerGone(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	proxy := chaos.Start(t, s.Addr())
	b := open(t, s.URLOf("postgres", proxy.Addr()))
	id := session(t, b, time.Minute, nil)
	take(t, b, ask("kept", id))
	waits := start(t, b, ask("kept", id))
	inLine(t, b, "kept", 1)
	proxy.BlackHole()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	from := time.Now()
	_, err := b.Acquire(ctx, ask("n", id))
	var away *backend.UnavailableError
	if !errors.As(err, &away) || !away.MayHold || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Acquire: %v", err)
	}
	_, err = b.Renew(ctx, backend.RenewRequest{Session: id})
	if !errors.Is(err, backend.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Renew: %v", err)
	}
	if took := time.Since(from); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	from = time.Now()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(from); took > 5*time.Second {
		t.Errorf("Close took %s", took)
	}
	if g := <-waits; !errors.Is(g.err, backend.ErrClosed) {
		t.Errorf("the waiter: %v", g.err)
	}
}

// F9: the server is killed again and again while many ask. Nobody holds a lock that
// somebody else holds, and tokens rise.
func TestKilledUnderLoad(t *testing.T) {
	t.Parallel()
	const locks, workers, kills = 3, 12, 3
	s := testserver.Postgres(t)
	var backends []*pglock.Backend
	var sessions []backend.SessionID
	for range 3 {
		b := open(t, s.URL())
		backends, sessions = append(backends, b), append(sessions, session(t, b, time.Hour, nil))
	}
	var mu sync.Mutex
	held := make(map[string]backend.LeaseID)
	last := make(map[string]fence.Token)
	grants := 0
	stop, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	for i := range workers {
		b, id := backends[i%len(backends)], sessions[i%len(backends)]
		all.Go(func() {
			for n := 0; stop.Err() == nil; n++ {
				req := ask("n"+strconv.Itoa((i+n)%locks), id)
				g, err := insist(t, func(ctx context.Context) (backend.Grant, error) { return b.Acquire(ctx, req) })
				if err != nil {
					t.Errorf("acquire: %v", err)
					return
				}
				mu.Lock()
				if by := held[req.Name]; by != "" || g.Token <= last[req.Name] {
					t.Errorf("%s was granted with token %d; held by %q, last token %d", req.Name, g.Token, by, last[req.Name])
				}
				held[req.Name], last[req.Name] = req.Lease, g.Token
				grants++
				mu.Unlock()
				mu.Lock()
				delete(held, req.Name)
				mu.Unlock()
				_, err = insist(t, func(ctx context.Context) (struct{}, error) {
					return struct{}{}, b.Release(ctx, backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: id})
				})
				if err != nil && !errors.Is(err, backend.ErrLost) { // it may have been released by a call whose reply was lost
					t.Errorf("release: %v", err)
					return
				}
			}
		})
	}
	for range kills {
		mu.Lock()
		from := grants
		mu.Unlock()
		eventually(t, "grants go on", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return grants > from+50 || t.Failed()
		})
		s.Restart()
	}
	cancel()
	all.Wait()
	t.Logf("%d grants", grants)
}

// insist asks until there is an answer.
func insist[T any](t *testing.T, call func(context.Context) (T, error)) (T, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	for {
		v, err := call(ctx)
		if !errors.Is(err, backend.ErrUnavailable) || ctx.Err() != nil {
			return v, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
