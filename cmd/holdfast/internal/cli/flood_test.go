//go:build linux

package cli_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// The limits of each attacker. Each number is in no other refusal, so an answer tells which limit it met.
const (
	maxLocks, maxWaiters, maxRequests = 501, 63, 203

	floodPolicy = `
principals: {victim: {certificates: [client]}, bystander: {certificates: [bystander]}, %s}
grants: [{to: ["*"], locks: ["*"], verbs: [acquire, read]}, {to: [%s], locks: [hot, mob], verbs: [break]}]
limits: [{to: [%s], locks: %d, waiters: %d, requests: %d}]
`
)

// refusals returns the texts of the refusals at the limits of all attackers.
func refusals() []string {
	return []string{
		fmt.Sprintf("that this client may hold: %d", maxLocks), fmt.Sprintf("that a client may have: %d", maxWaiters),
		fmt.Sprintf("may send in a second: %d", maxRequests),
	}
}

// Four principals, each at all its limits, send what they can for longer than a lease lasts,
// and break locks where they have the right. A principal with 200 leases loses none, another one acquires, renews, releases
// and watches, the memory of the server stays bounded, and nothing of the attackers is left in it when they are gone.
func TestFlood(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const attackers, ttl, lasts = 4, 45 * time.Second, 50 * time.Second // a lease that is not renewed is lost
	const memory = 512 << 20                                            // about 210 MiB were measured
	f := startFlooded(t, attackers)
	v, b := newVictim(t, f, ttl), newBystander(t, f)
	b.cycle(b.lock.call)
	before := f.gauges(b)

	ctx, cancel := context.WithCancel(t.Context())
	var attack sync.WaitGroup
	defer func() { cancel(); attack.Wait(); v.wait() }() // also when the test fails early
	all := make([]*attacker, attackers)
	for i := range all {
		all[i] = newAttacker(t, f, i)
		attack.Go(func() { all[i].run(ctx) })
	}
	begun, served := time.Now(), 0
	defer func() {
		if left := missing(all); len(left) > 0 {
			t.Logf("limits that were not met: %q", left)
		}
	}()
	await(t, 8*time.Minute, "the attackers are at their limits, and the bystander is served", func() bool {
		b.cycle(b.lock.insist)
		served++
		return time.Since(begun) > lasts && served >= 10 && len(missing(all)) == 0
	})
	f.peak(memory)
	t.Logf("%d rounds of the bystander in %s; answers to the attackers: %v", served, time.Since(begun).Round(time.Second), f.counts())
	cancel()
	attack.Wait()
	for range 3 {
		b.cycle(b.lock.call)
	}
	await(t, time.Minute, "what the attackers left is gone", func() bool {
		now := f.gauges(b)
		return now.waits == 0 && now.queue == 0 && now.files <= before.files+20 && now.goroutines <= before.goroutines+50
	})
	all[0].streamsAgain(t)
	v.wait() // each lease is renewed once more
}

// flooded is a server with TLS and a policy.
type flooded struct {
	t      *testing.T
	server *testserver.Process
	dir    string // of the certificates
	addr   string

	mu      sync.Mutex
	answers map[int]int // by their status
}

func startFlooded(t *testing.T, attackers int) *flooded {
	t.Helper()
	f := &flooded{t: t, dir: filepath.Join(testserver.Dir(t), "certs"), addr: fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t)), answers: make(map[int]int)}
	certsJSON(t, "init", f.dir)
	certsJSON(t, "client", f.dir, "bystander")
	var names, principals []string
	for i := range attackers {
		name := fmt.Sprint("attacker", i)
		certsJSON(t, "client", f.dir, name)
		names, principals = append(names, name), append(principals, name+": {certificates: ["+name+"]}")
	}
	at := func(name string) string { return filepath.Join(f.dir, name) }
	policy := fmt.Sprintf(floodPolicy, strings.Join(principals, ", "), strings.Join(names, ", "), strings.Join(names, ", "), maxLocks, maxWaiters, maxRequests)
	if err := os.WriteFile(at("policy.yaml"), []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	f.server = testserver.Start(t, testserver.Command{Path: binary, Args: []string{
		"serve", "--listen", f.addr, "--data-dir", filepath.Join(testserver.Dir(t), "data"), "--policy", at("policy.yaml"), "-q",
		"--tls-cert", at("server.pem"), "--tls-key", at("server.key"), "--tls-client-ca", at("ca.pem"),
	}})
	probe := f.holder("client", "probe")
	f.server.Await(time.Minute, func(ctx context.Context) error { return probe.call(ctx, http.MethodGet, "/readyz", nil) })
	return f
}

// holder returns a client with the certificate of a principal.
func (f *flooded) holder(principal, name string) *holder {
	f.t.Helper()
	return newHolder(f.t, "https://"+f.addr, name, clientTLS(f.t, f.dir, principal), new(atomic.Int64), new(atomic.Int64))
}

// gauges are what the server uses, and how many wait for a lock for which attackers wait.
type gauges struct {
	waits, files, goroutines float64
	queue                    int
}

func (f *flooded) gauges(b *bystander) gauges {
	f.t.Helper()
	page, err := b.lock.ask(f.t.Context(), http.MethodGet, "/metrics", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	value := func(name string) float64 { return sample(f.t, page, name) }
	text, err := b.lock.ask(f.t.Context(), http.MethodGet, "/v1/locks/victim%2F1", nil)
	var lock wire.Lock
	if err := errors.Join(err, json.Unmarshal(text, &lock)); err != nil {
		f.t.Fatal(err)
	}
	return gauges{value("holdfast_queue_depth"), value("process_open_fds"), value("go_goroutines"), len(lock.Waiters)}
}

// peak checks the most memory that the server ever had.
func (f *flooded) peak(most int) {
	f.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.server.Pid()))
	if err != nil {
		f.t.Fatal(err)
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		f.t.Fatalf("no VmHWM in %s", status)
	}
	kib, err := strconv.Atoi(string(found[1]))
	if err != nil || kib<<10 > most {
		f.t.Errorf("the server took %d MiB, want at most %d: %v", kib>>10, most>>20, err)
	}
	f.t.Logf("the server took %d MiB", kib>>10)
}

// judge checks the answer to an attacker. An answer beyond a limit says when to try again.
func (f *flooded) judge(what string, status int, header http.Header) {
	f.mu.Lock()
	f.answers[status]++
	f.mu.Unlock()
	switch status {
	case http.StatusOK, http.StatusNoContent, http.StatusConflict, http.StatusGone:
	case http.StatusRequestTimeout: // the machine is busy
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if n, err := strconv.Atoi(header.Get("Retry-After")); err != nil || n < 1 {
			f.t.Errorf("%s: status %d with Retry-After %q", what, status, header.Get("Retry-After"))
		}
	default:
		f.t.Errorf("%s: status %d", what, status)
	}
}

func (f *flooded) counts() map[int]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.answers)
}

// singles is how many leases the victim renews one by one.
const singles = 40

// victim holds leases: some with a connection and a request for each, the others with a request for many.
type victim struct {
	t    *testing.T
	ttl  time.Duration
	stop chan struct{}
	kept sync.WaitGroup
	once sync.Once
}

func newVictim(t *testing.T, f *flooded, ttl time.Duration) *victim {
	t.Helper()
	const batches, inBatch = 4, 40
	v := &victim{t: t, ttl: ttl, stop: make(chan struct{})}
	for i := range singles {
		h := f.holder("client", fmt.Sprintf("victim/%d", i))
		if err := h.acquire(t.Context(), ttl); err != nil {
			t.Fatal(err)
		}
		v.kept.Go(func() {
			if err := h.keep(t.Context(), ttl, v.stop); err != nil {
				t.Errorf("%s: %v", h.name, err)
			}
		})
	}
	for i := range batches {
		h := f.holder("client", "")
		var held []map[string]any
		for k := range inBatch {
			held = append(held, map[string]any{"name": fmt.Sprintf("victim/%d/%d", i, k), "lease": backend.NewLeaseID(), "ttl": ttl.String()})
		}
		if err := errors.Join(h.call(t.Context(), http.MethodPost, "/v1/leases/batch", map[string]any{"acquire": held}), renewMany(t.Context(), h, held)); err != nil {
			t.Fatal(err)
		}
		v.every(func() error {
			for {
				if err := renewMany(t.Context(), h, held); err == nil || errors.Is(err, errGone) || t.Context().Err() != nil {
					return err
				}
				retry.Pause(t.Context(), 50*time.Millisecond)
			}
		})
	}
	lists := f.holder("client", "")
	v.every(func() error { return lists.insist(t.Context(), http.MethodGet, "/v1/locks?prefix=victim", nil) })
	return v
}

// every calls what every third of the TTL, and once when the victim ends, until it returns an error.
func (v *victim) every(what func() error) {
	v.kept.Go(func() {
		tick := time.NewTicker(v.ttl / 3)
		defer tick.Stop()
		for stopped := false; !stopped; {
			select {
			case <-v.stop:
				stopped = true
			case <-tick.C:
			}
			if err := what(); err != nil {
				v.t.Errorf("the victim: %v", err)
				return
			}
		}
	})
}

func renewMany(ctx context.Context, h *holder, held []map[string]any) error {
	text, err := h.ask(ctx, http.MethodPost, "/v1/leases/renew", map[string]any{"leases": held})
	if err != nil {
		return err
	}
	var res wire.RenewManyResponse
	if err := json.Unmarshal(text, &res); err != nil {
		return err
	}
	for _, l := range res.Leases {
		switch {
		case l.Error == nil:
		case l.Error.Status == http.StatusGone:
			return fmt.Errorf("%s: %w", l.Name, errGone)
		default:
			err = fmt.Errorf("%s: %s", l.Name, l.Error.Detail)
		}
	}
	return err
}

// wait makes the victim renew each lease once more, and end.
func (v *victim) wait() {
	v.once.Do(func() { close(v.stop) })
	v.kept.Wait()
}

// bystander acquires, renews and releases a lock, and watches it.
type bystander struct {
	t      *testing.T
	lock   *holder
	events chan string
}

func newBystander(t *testing.T, f *flooded) *bystander {
	t.Helper()
	b := &bystander{t: t, lock: f.holder("bystander", "bystander"), events: make(chan string, 100)}
	watching := f.holder("bystander", "")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, watching.base+"/v1/events?prefix=bystander", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := watching.http.Do(req)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("watch: %v, %+v", err, res)
	}
	var reading sync.WaitGroup
	t.Cleanup(func() { _ = res.Body.Close(); reading.Wait() })
	reading.Go(func() {
		lines := bufio.NewScanner(res.Body)
		for lines.Scan() {
			if kind, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				b.events <- kind
			}
		}
	})
	b.sees("watching")
	return b
}

// sees waits for an event.
func (b *bystander) sees(kind string) {
	b.t.Helper()
	late := time.NewTimer(time.Minute)
	defer late.Stop()
	for {
		select {
		case got := <-b.events:
			if got == kind {
				return
			}
		case <-late.C:
			b.t.Fatalf("no event %q within a minute", kind)
		}
	}
}

// cycle acquires, renews and releases the lock. call is holder.call, where nothing may be refused, or holder.insist.
func (b *bystander) cycle(call func(ctx context.Context, method, path string, body any) error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	lease := backend.NewLeaseID()
	held, ttl := b.lock.path()+"/leases/"+string(lease), map[string]any{"ttl": "1m"}
	if err := call(ctx, http.MethodPost, b.lock.path(), map[string]any{"lease": lease, "ttl": "1m", "wait": "10s"}); err != nil {
		b.t.Fatalf("the bystander acquires: %v", err)
	}
	b.sees("acquired")
	if err := errors.Join(call(ctx, http.MethodPut, held, ttl), call(ctx, http.MethodDelete, held, nil)); err != nil {
		b.t.Fatalf("the bystander renews and releases: %v", err)
	}
	b.sees("released")
}
