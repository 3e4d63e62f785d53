//go:build linux

package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
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

// refusals returns the texts of the refusals at the limits of an attacker.
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
	for i := range attackers {
		attack.Go(func() { f.attack(ctx, fmt.Sprint("attacker", i)) })
	}
	begun, served := time.Now(), 0
	await(t, 8*time.Minute, "the attackers are at their limits, and the bystander is served", func() bool {
		b.cycle(b.lock.insist)
		served++
		return time.Since(begun) > lasts && served >= 10 && f.limits() == attackers*len(refusals())
	})
	f.peak(memory)
	cancel()
	attack.Wait()
	for range 3 {
		b.cycle(b.lock.call)
	}
	await(t, time.Minute, "what the attackers left is gone", func() bool {
		now := f.gauges(b)
		return now.waits == 0 && now.queue == 0 && now.files <= before.files+20 && now.goroutines <= before.goroutines+50
	})
	v.wait() // each lease is renewed once more
}

// flooded is a server with TLS and a policy.
type flooded struct {
	t      *testing.T
	server *testserver.Process
	dir    string // of the certificates
	addr   string

	mu  sync.Mutex
	met map[string]bool // the limits, by attacker
}

func startFlooded(t *testing.T, attackers int) *flooded {
	t.Helper()
	f := &flooded{t: t, dir: filepath.Join(testserver.Dir(t), "certs"), addr: fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t)), met: make(map[string]bool)}
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

// sample returns the value of a metric on a page of metrics; of several with the name, of the first.
func sample(t *testing.T, page []byte, name string) float64 {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + name + `(?:\{.*\})? (\S+)$`).FindSubmatch(page)
	if found == nil {
		t.Fatalf("there is no %s", name)
	}
	v, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
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

// limits returns how many limits the attackers have met.
func (f *flooded) limits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.met)
}

// attack uses all that a principal can get until ctx ends: leases with long texts, waits, event streams, batches, breaks, and
// silent connections.
func (f *flooded) attack(ctx context.Context, who string) {
	const streams, silent = 11, 100
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: clientTLS(f.t, f.dir, who), ForceAttemptHTTP2: true}}
	var work sync.WaitGroup
	defer client.CloseIdleConnections()
	defer work.Wait()
	repeat := func(method, path string, body func() string) {
		work.Go(func() {
			for ctx.Err() == nil {
				f.shoot(ctx, client, who, method, path, body())
			}
		})
	}
	always := func(text string) func() string { return func() string { return text } }
	long := strings.Repeat("n", 1024)
	heavy := always(fmt.Sprintf(`{"ttl":"10m","shared":true,"note":%q,"owner":%q}`, long, long[:250]))
	batch := func(list string, n int, item func(i int) string) func() string {
		return func() string {
			all := make([]string, n)
			for i := range all {
				all[i] = item(i)
			}
			return `{"` + list + `":[` + strings.Join(all, ",") + `]}`
		}
	}
	for range streams {
		repeat(http.MethodGet, "/v1/events", always(""))
	}
	for i := range maxWaiters + 10 { // for locks of the victim
		repeat(http.MethodPost, fmt.Sprintf("/v1/locks/victim%%2F%d", i%singles), always(fmt.Sprintf(`{"ttl":"2s","wait":"60s","note":%q}`, long)))
	}
	repeat(http.MethodPost, "/v1/locks/crowd", heavy) // from now on an exclusive acquire of that lock is refused because of a crowd
	repeat(http.MethodPost, "/v1/locks/crowd", always(`{"ttl":"1s"}`))
	repeat(http.MethodPost, "/v1/locks/hot", always(`{"ttl":"2s"}`))
	repeat(http.MethodDelete, "/v1/locks/hot?reason="+long, always(""))
	repeat(http.MethodPost, "/v1/locks/mob", heavy)
	repeat(http.MethodDelete, "/v1/locks/mob?reason="+long, always(""))
	repeat(http.MethodPost, "/v1/leases/batch", batch("acquire", 256, func(i int) string { return fmt.Sprintf(`{"name":"crowd","lease":"lease-of-a-crowd-%04d"}`, i) }))
	repeat(http.MethodPost, "/v1/leases/batch", batch("acquire", 64, func(int) string { // long names for a day
		return fmt.Sprintf(`{"name":"long/%s/%s","lease":%q,"ttl":"24h"}`, rand.Text(), long[:400], rand.Text())
	}))
	repeat(http.MethodPost, "/v1/leases/renew", batch("leases", 1000, func(i int) string { return fmt.Sprintf(`{"name":"n%d","lease":"aaaaaaaaaaaa%04d"}`, i, i) }))
	repeat(http.MethodGet, "/v1/locks?limit=1000", always(""))
	repeat(http.MethodDelete, "/v1/locks/never/leases/there-was-no-such-lease", always(""))
	repeat(http.MethodPut, "/v1/locks/victim%2F0/leases/there-was-no-such-lease", always("{}"))
	for range silent {
		if conn, err := (&net.Dialer{Timeout: time.Minute}).DialContext(ctx, "tcp", f.addr); err == nil {
			defer conn.Close()
		}
	}
	<-ctx.Done()
}

// shoot sends one request, reads the answer to its end, and pauses for less than a client should if it was refused.
func (f *flooded) shoot(ctx context.Context, client *http.Client, who, method, path, body string) {
	const pause = 50 * time.Millisecond
	req, err := http.NewRequestWithContext(ctx, method, "https://"+f.addr+path, strings.NewReader(body))
	if err != nil {
		f.t.Error(err)
		return
	}
	res, err := client.Do(req)
	if err != nil {
		retry.Pause(ctx, pause)
		return
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable {
		retry.Pause(ctx, pause)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, limit := range refusals() {
		if strings.Contains(string(text), limit) {
			f.met[who+": "+limit] = true
		}
	}
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
		lease := backend.NewLeaseID()
		if err := h.insist(t.Context(), http.MethodPost, h.path(), map[string]any{"lease": lease, "ttl": ttl.String()}); err != nil {
			t.Fatal(err)
		}
		v.every(func() error {
			return h.insist(t.Context(), http.MethodPut, h.path()+"/leases/"+string(lease), map[string]any{"ttl": ttl.String()})
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

// holder is a client of the HTTP API with one connection.
type holder struct {
	name string // of its lock
	base string
	http *http.Client
}

// holder returns a client with the certificate of a principal.
func (f *flooded) holder(principal, name string) *holder {
	f.t.Helper()
	transport := &http.Transport{MaxConnsPerHost: 1, TLSClientConfig: clientTLS(f.t, f.dir, principal), IdleConnTimeout: time.Hour}
	f.t.Cleanup(transport.CloseIdleConnections)
	return &holder{name, "https://" + f.addr, &http.Client{Transport: transport}}
}

func (h *holder) path() string { return "/v1/locks/" + url.PathEscape(h.name) }

// errGone is that of a lease which the server does not know any more.
var errGone = errors.New("the lease is gone")

// ask sends a request, without a body if that is nil. An answer other than 200 and 204 is an error.
func (h *holder) ask(ctx context.Context, method, path string, body any) ([]byte, error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, h.base+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := h.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return nil, err
	case res.StatusCode == http.StatusNotFound, res.StatusCode == http.StatusConflict, res.StatusCode == http.StatusGone:
		return nil, fmt.Errorf("%w: %s", errGone, answer)
	case res.StatusCode != http.StatusOK && res.StatusCode != http.StatusNoContent:
		return nil, fmt.Errorf("%s: %s", res.Status, answer)
	}
	return answer, nil
}

// call is ask for an answer that does not matter.
func (h *holder) call(ctx context.Context, method, path string, body any) error {
	_, err := h.ask(ctx, method, path, body)
	return err
}

// insist repeats a request, which names the lease and so may be repeated, until it succeeds or the lease is gone.
func (h *holder) insist(ctx context.Context, method, path string, body any) error {
	for {
		err := h.call(ctx, method, path, body)
		if err == nil || errors.Is(err, errGone) || ctx.Err() != nil {
			return err
		}
		retry.Pause(ctx, 50*time.Millisecond)
	}
}

// clientTLS returns the configuration of a client with a certificate in a folder of certs init.
func clientTLS(t *testing.T, dir, name string) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "localhost"}
}
