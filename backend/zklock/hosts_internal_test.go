package zklock

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// A server that has moved to another address is found there, by a connection that was made before.
func TestServerMoves(t *testing.T) {
	t.Parallel()
	server := testserver.StartZooKeeper(t, 1)[0]
	_, port, err := net.SplitHostPort(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	moved := make(chan struct{})
	asked := make(chan struct{}, 100)
	b, err := New(Config{
		Servers: []string{net.JoinHostPort("zookeeper.test", port)}, Tick: testserver.ZooKeeperTick, MaxSession: testserver.ZooKeeperMaxSession,
		lookup: func(context.Context, string) ([]string, error) {
			select {
			case asked <- struct{}{}:
			default:
			}
			if isClosed(moved) {
				return []string{"127.0.0.1"}, nil
			}
			return []string{"127.0.0.2"}, nil // no server listens there
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	inspected := make(chan error, 1)
	go func() {
		_, err := b.Inspect(ctx, "n")
		inspected <- err
	}()
	<-asked
	close(moved)
	if err := <-inspected; err != nil {
		t.Error(err)
	}
}

// A caller that requests a connection does not wait, with locks that other callers need, for names
// to be resolved. Neither does Close.
func TestSlowNames(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 100)
	b, err := New(Config{
		Servers: []string{"zookeeper.test:2181"},
		lookup: func(ctx context.Context, _ string) ([]string, error) {
			asked <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	inspected := make(chan error, 1)
	go func() {
		_, err := b.Inspect(ctx, "n")
		inspected <- err
	}()
	<-asked
	if _, err := b.sessions.Get("none"); !errors.Is(err, backend.ErrSessionLost) {
		t.Error(err)
	}
	cancel()
	if err := <-inspected; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// All addresses are tried, and then Next reports that they were, once for each round; the one that
// worked counts as tried.
func TestHostsInTurn(t *testing.T) {
	t.Parallel()
	var h zk.HostProvider = &hosts{lookup: func(_ context.Context, host string) ([]string, error) {
		if host == "two" {
			return []string{"10.0.0.1", "10.0.0.2"}, nil
		}
		return nil, errors.New("no such host")
	}, life: t.Context()}
	if err := h.Init([]string{"two:1", "none:2"}); err != nil {
		t.Fatal(err)
	}
	round := func(n int, connected bool) []string {
		var got []string
		for i := range n {
			addr, again := h.Next()
			if again != (i == 0 && len(got) == 0 && connected) {
				t.Errorf("address %d: all tried: %v", i, again)
			}
			got = append(got, addr)
		}
		slices.Sort(got)
		return got
	}
	all := []string{"10.0.0.1:1", "10.0.0.2:1", "none:2"}
	if got := round(3, false); !slices.Equal(got, all) {
		t.Errorf("%q", got)
	}
	if got := round(3, true); len(got) != h.Len() {
		t.Errorf("%q", got)
	}
	h.Connected()
	for i := range 3 {
		if _, again := h.Next(); again != (i == 2) {
			t.Errorf("after a connection, address %d: all tried: %v", i, again)
		}
	}
}

// An address that hangs is omitted for a while, unless there is no other.
func TestHostThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &hosts{lookup: func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }, life: t.Context()}
		if err := h.Init([]string{"a:1", "b:2", "c:3"}); err != nil {
			t.Fatal(err)
		}
		round := func(want ...string) {
			t.Helper()
			first, _ := h.Next()
			got := []string{first}
			for range h.Len() - 1 {
				addr, again := h.Next()
				if again {
					t.Errorf("all tried after %q", got)
				}
				got = append(got, addr)
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
		}
		round("a:1", "b:2", "c:3")
		h.silent("b:2", 3*time.Second)
		round("a:1", "c:3")
		h.silent("c:3", 3*time.Second)
		time.Sleep(2 * time.Second)
		round("a:1", "b:2")
		time.Sleep(time.Second)
		round("a:1", "b:2", "c:3")
		if err := h.Init([]string{"b:2", "b:2"}); err != nil {
			t.Fatal(err)
		}
		h.silent("b:2", time.Minute)
		round("b:2", "b:2")
	})
}

// deadlines is a connection that records its read deadlines.
type deadlines struct {
	net.Conn
	reads time.Time
	err   error
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.reads = t
	return nil
}

func (d *deadlines) Read([]byte) (int, error) { return 0, d.err }

// A session gets another connection when its server has sent nothing for ten seconds, however long the session may be silent
// by the library. A server that sends something now and then is waited for.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const every, times = 4 * time.Second, 5
		near, far := net.Pipe()
		defer near.Close()
		l := &link{life: t.Context(), silence: silence}
		l.given.Store(int64(time.Hour))
		dial := l.dial(&Config{Dial: func(string, string, time.Duration) (net.Conn, error) { return near, nil }}, time.Hour)
		conn, err := dial("tcp", "a:1", time.Second)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		go func() {
			head := make([]byte, headSize) // of the first answer
			binary.BigEndian.PutUint32(head[timeoutAt:], uint32(time.Hour/time.Millisecond))
			_, _ = far.Write(head)
			for range times {
				time.Sleep(every)
				_, _ = far.Write([]byte{0})
			}
		}()
		if _, err := io.ReadFull(conn, make([]byte, headSize)); err != nil {
			t.Fatal(err)
		}
		for range times + 1 {
			if err = conn.SetReadDeadline(time.Now().Add(40 * time.Minute)); err != nil {
				t.Fatal(err)
			}
			_, err = conn.Read(make([]byte, 1))
		}
		if took := time.Since(began) - times*every; !errors.Is(err, os.ErrDeadlineExceeded) || took != silence || l.hosts.hangs != "a:1" {
			t.Errorf("%v, %s after its last word; %q is left out", err, took, l.hosts.hangs)
		}
	})
}

// A connection has a second for its first answer, and the next ones longer, until one is answered.
func TestPatienceGrows(t *testing.T) {
	t.Parallel()
	for timeout, most := range map[time.Duration]time.Duration{16 * time.Second: 4 * time.Second, time.Hour: mostPatience} {
		near, far := net.Pipe()
		defer near.Close()
		go func() { _, _ = far.Write(make([]byte, headSize)) }()
		l := &link{life: t.Context()}
		dial := l.dial(&Config{Dial: func(string, string, time.Duration) (net.Conn, error) { return near, nil }}, timeout)
		next := func() *wire {
			conn, err := dial("tcp", "a:1", time.Second)
			if err != nil {
				t.Fatal(err)
			}
			return conn.(*wire)
		}
		var got []time.Duration
		for range 5 {
			got = append(got, next().patience)
		}
		if _, err := next().Read(make([]byte, headSize)); err != nil {
			t.Fatal(err)
		}
		got = append(got, next().patience)
		if want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, most, most, time.Second}; !slices.Equal(got, want) {
			t.Errorf("of a session of %s: the first answer may take %v, want %v", timeout, got, want)
		}
	}
}

// A server that sends nothing has a quarter of the session time-out for its first answer and half
// of it later on, whatever the library would give it, and is not tried first again.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = 12 * time.Second
		l := &link{silence: timeout}
		l.given.Store(int64(timeout))
		conn := &deadlines{err: os.ErrDeadlineExceeded}
		w := &wire{Conn: conn, link: l, addr: "a:1", asked: timeout, patience: timeout / 4}
		until := func(asked, want time.Duration) {
			t.Helper()
			if err := w.SetReadDeadline(time.Now().Add(asked)); err != nil {
				t.Fatal(err)
			}
			if got := time.Until(conn.reads); got != want {
				t.Errorf("asked for %s: %s, want %s", asked, got, want)
			}
		}
		until(80*time.Second, 3*time.Second)
		w.size = 1 // it has answered
		until(8*time.Second, 6*time.Second)
		until(time.Second, time.Second)
		if err := w.SetReadDeadline(time.Time{}); err != nil || !conn.reads.IsZero() {
			t.Errorf("no deadline: %s, %v", conn.reads, err)
		}
		if _, err := w.Read(nil); err == nil || l.hosts.hangs != "a:1" || time.Until(l.hosts.until) != 3*time.Second {
			t.Errorf("%v; left out: %q for %s", err, l.hosts.hangs, time.Until(l.hosts.until))
		}
		l.hosts.hangs, conn.err = "", net.ErrClosed
		if _, err := w.Read(nil); err == nil || l.hosts.hangs != "" {
			t.Errorf("%v; left out: %q", err, l.hosts.hangs)
		}
	})
}
