//go:build unix

package cli_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testserver"
)

// balancer passes TCP connections on to the nodes whose /readyz is 200, in turns, as a load balancer does that
// knows nothing of HTTP.
type balancer struct {
	ln      net.Listener
	refused atomic.Int64 // connections that a node which was believed ready did not accept
	passed  atomic.Int64

	mu    sync.Mutex
	ready []string
	heard map[string]time.Time // when the last request that a node answered was sent
	next  int
}

const (
	// pollEvery is how often the balancer asks the nodes. The drain delay of the nodes is much longer.
	pollEvery  = 100 * time.Millisecond
	drainDelay = 6 * time.Second
)

func startBalancer(t *testing.T, nodes []string, conf *tls.Config) *balancer {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{ln: ln, heard: make(map[string]time.Time)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var work sync.WaitGroup
	for _, node := range nodes {
		work.Go(func() { b.watch(ctx, node, conf) })
	}
	work.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			work.Go(func() { b.pass(ctx, conn) })
		}
	})
	t.Cleanup(func() { cancel(); _ = ln.Close(); work.Wait() })
	return b
}

// watch asks a node whether it is ready.
func (b *balancer) watch(ctx context.Context, node string, conf *tls.Config) {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: conf}}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+node+"/readyz", http.NoBody)
		if err != nil {
			return
		}
		asked := time.Now()
		res, err := client.Do(req)
		if err == nil {
			_ = res.Body.Close()
		}
		if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() {
			continue // the machine is busy
		}
		b.set(node, err == nil && res.StatusCode == http.StatusOK, asked)
	}
}

func (b *balancer) set(node string, ready bool, asked time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heard[node] = asked
	i := slices.Index(b.ready, node)
	switch {
	case ready && i < 0:
		b.ready = append(b.ready, node)
	case !ready && i >= 0:
		b.ready = slices.Delete(b.ready, i, i+1)
	}
}

// choose returns the next node, or "" if none is ready. It waits while the machine is so busy that what it knows of the
// ready ones is old: they may be closed.
func (b *balancer) choose(ctx context.Context) string {
	for {
		if node, known := b.turn(); known {
			return node
		}
		select {
		case <-ctx.Done():
			return ""
		case <-time.After(pollEvery):
		}
	}
}

// turn returns the next node that said that it is ready a short time ago. The second result is false if
// none did: then it has to be asked for again.
func (b *balancer) turn() (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range b.ready {
		b.next++
		node := b.ready[b.next%len(b.ready)]
		if time.Since(b.heard[node]) < drainDelay/3 {
			return node, true
		}
	}
	return "", len(b.ready) == 0
}

// pass copies both directions until either side has ended.
func (b *balancer) pass(ctx context.Context, client net.Conn) {
	defer client.Close()
	node, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", b.choose(ctx))
	if err != nil {
		if ctx.Err() == nil {
			b.refused.Add(1)
		}
		return
	}
	b.passed.Add(1)
	defer context.AfterFunc(ctx, func() { _ = client.Close(); _ = node.Close() })()
	var answers sync.WaitGroup
	answers.Go(func() {
		_, _ = io.Copy(client, node)
		_ = client.Close()
	})
	_, _ = io.Copy(node, client)
	_ = node.Close()
	answers.Wait()
}

// Three servers on one store, with TLS and a policy, are restarted one after the other behind a balancer, under 200
// clients and five commands: no connection is refused, no lease is lost, and no command fails.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	const clients, commands, ttl = 200, 5, 30 * time.Second
	dir := testserver.Dir(t)
	made := certsJSON(t, "init", filepath.Join(dir, "certs"))
	policy := filepath.Join(dir, "policy.yaml")
	text := "principals: {client: {certificates: [client]}}\ngrants: [{to: [client], locks: ['*'], verbs: [acquire, read]}]\n" +
		"limits: [{to: [client], requests: 100000, locks: 100000}]\n"
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	addrs, servers := make([]string, 3), make([]*testserver.Process, 3)
	start := func(i int) {
		flags := strings.TrimPrefix(made.Serve, "holdfast serve ")
		servers[i] = testserver.Start(t, testserver.Command{Path: binary, Args: append(append([]string{"serve"}, strings.Fields(flags)...),
			"--policy", policy, "--listen", addrs[i], "--data-dir", filepath.Join(dir, "data"), "--drain-delay", drainDelay.String())})
	}
	for i := range servers {
		addrs[i] = fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
		start(i)
	}
	conf := clientTLS(t, filepath.Join(dir, "certs"), "client")
	b := startBalancer(t, addrs, conf)
	whole := func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.ready) == len(addrs) }
	await(t, time.Minute, "the balancer knows three servers", whole)
	addr := b.ln.Addr().String()

	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	var dials, failed, lost atomic.Int64
	stop := make(chan struct{})
	var acquired, kept sync.WaitGroup
	defer func() { cancel(); kept.Wait() }() // also when the test fails early
	acquired.Add(clients)
	limit := make(chan struct{}, 16) // handshakes at a time: the test has few processors
	for i := range clients {
		h := newHolder(t, "https://"+addr, fmt.Sprintf("client/%d", i), conf, &dials, &failed)
		kept.Go(func() {
			limit <- struct{}{}
			err := h.acquire(ctx, ttl)
			<-limit
			acquired.Done()
			if err == nil {
				err = h.keep(ctx, ttl, stop)
			}
			if err != nil && lost.Add(1) == 1 {
				t.Errorf("%s: %v", h.name, err)
			}
		})
	}
	over := filepath.Join(dir, "over")
	results := make(chan result, commands)
	for i := range commands {
		begun := filepath.Join(dir, fmt.Sprint("begun", i))
		cmd := command(t, "holdfasts://"+addr+made.Client[strings.Index(made.Client, "?"):], "run", fmt.Sprint("command/", i), "--ttl", ttl.String(), "--", "sh", "-c", `touch "$1"; until test -e "$2"; do sleep 0.2; done`, "sh", begun, over)
		go func() { results <- run(t, cmd) }()
		await(t, time.Minute, "the command runs", func() bool { _, err := os.Stat(begun); return err == nil })
	}
	acquired.Wait()
	for i := range servers {
		servers[i].Terminate()
		await(t, time.Minute, "the balancer knows that it is gone", func() bool { return !whole() })
		start(i)
		await(t, time.Minute, "the balancer knows three servers again", whole)
	}
	close(stop)
	kept.Wait()
	if err := os.WriteFile(over, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range commands {
		if r := <-results; r.status != 0 {
			t.Errorf("a command: %+v", r)
		}
	}
	if lost.Load() != 0 || failed.Load() != 0 || b.refused.Load() != 0 {
		t.Errorf("of %d connections %d were refused by the balancer and %d by a node; %d leases were lost", b.passed.Load(), failed.Load(), b.refused.Load(), lost.Load())
	}
}
