package zklock

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// A server that has moved to another address is found there, by a connection that was made
// before.
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
			return []string{"127.0.0.2"}, nil // nobody listens there
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

// Who asks for a connection does not wait for names to be looked up, with what others need
// locked; and Close does not either.
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
	if _, err := b.session("none"); !errors.Is(err, backend.ErrSessionLost) {
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

// All addresses are tried, and then it is said that they were, once for each round; the one
// that was good counts as tried.
func TestHostsInTurn(t *testing.T) {
	t.Parallel()
	var h zk.HostProvider = &hosts{lookup: func(_ context.Context, host string) ([]string, error) {
		if host == "two" {
			return []string{"10.0.0.1", "10.0.0.2"}, nil
		}
		return nil, errors.New("no such host")
	}, over: make(chan struct{})}
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
