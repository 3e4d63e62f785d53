//go:build linux

package cli_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// attacker is a principal that uses all it can get. Its requests are of three kinds, with connections of their own.
type attacker struct {
	f      *flooded
	conf   *tls.Config
	name   string
	client map[string]*http.Client

	mu  sync.Mutex
	met map[string]bool // the limits
}

const quick, waits, streams = "quick", "waits", "streams"

// manyStreams is how many event streams an attacker has.
const manyStreams = 11

func newAttacker(t *testing.T, f *flooded, number int) *attacker {
	t.Helper()
	a := &attacker{f: f, name: fmt.Sprint("attacker", number), client: make(map[string]*http.Client), met: make(map[string]bool)}
	a.conf = clientTLS(t, f.dir, a.name)
	for _, kind := range []string{quick, waits, streams} {
		a.client[kind] = &http.Client{Transport: &http.Transport{TLSClientConfig: a.conf.Clone(), ForceAttemptHTTP2: true}}
	}
	return a
}

// missing returns the limits that an attacker has not met.
func missing(all []*attacker) []string {
	var m []string
	for _, a := range all {
		a.mu.Lock()
		for _, text := range refusals() {
			if !a.met[text] {
				m = append(m, a.name+": "+text)
			}
		}
		a.mu.Unlock()
	}
	return m
}

// shot is a request of an attack.
type shot struct {
	kind, method, path, body string

	keepPlace bool          // hang up after a moment, and keep the place in the queue
	unread    time.Duration // how long the answer is left unread
}

// shots returns the attacks that repeat one request. lease IDs and names of locks that were never there are random.
func shots() []func() shot {
	note, owner := strings.Repeat("n", 1024), strings.Repeat("o", 250)
	items := func(n int, format string, arg func(i int) []any) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf(format, arg(i)...)
		}
		return strings.Join(all, ",")
	}
	amplify := `{"acquire":[` + items(256, `{"name":"crowd","lease":"lease-of-a-crowd-%04d"}`, func(i int) []any { return []any{i} }) + `]}`
	unknown := `{"leases":[` + items(1000, `{"name":"n%d","lease":"aaaaaaaaaaaa%04d"}`, func(i int) []any { return []any{i, i} }) + `]}`
	always := func(s shot) func() shot { return func() shot { return s } }
	return []func() shot{
		always(shot{method: "POST", path: "/v1/locks/crowd", body: fmt.Sprintf(`{"ttl":"10m","shared":true,"note":%q,"owner":%q}`, note, owner)}),
		always(shot{method: "POST", path: "/v1/locks/crowd", body: `{"ttl":"1s"}`, unread: time.Second}),
		always(shot{method: "POST", path: "/v1/locks/crowd", body: `{"ttl":"1s"}`}),
		always(shot{method: "POST", path: "/v1/locks/hot", body: `{"ttl":"2s"}`}),
		always(shot{method: "DELETE", path: "/v1/locks/hot?reason=" + note}),
		always(shot{method: "POST", path: "/v1/locks/mob", body: fmt.Sprintf(`{"ttl":"10m","shared":true,"note":%q,"owner":%q}`, note, owner)}),
		func() shot { return shot{method: "DELETE", path: "/v1/locks/mob?reason=" + rand.Text() + note[:900]} },
		always(shot{method: "POST", path: "/v1/leases/batch", body: amplify}),
		always(shot{method: "POST", path: "/v1/leases/renew", body: unknown}),
		always(shot{method: "GET", path: "/v1/locks?limit=1000"}),
		func() shot { // long names for a day
			return shot{method: "POST", path: "/v1/leases/batch", body: `{"acquire":[` + items(64, `{"name":"long/%s/%s","lease":%q,"ttl":"24h","note":%q}`, func(int) []any {
				return []any{rand.Text(), strings.Repeat("x", 400), rand.Text(), note[:64]}
			}) + `]}`}
		},
		func() shot { return shot{method: "DELETE", path: "/v1/locks/never/leases/" + rand.Text()} },
		func() shot {
			return shot{method: "PUT", path: "/v1/locks/victim%2F0/leases/" + rand.Text(), body: `{}`}
		},
		func() shot {
			return shot{kind: waits, method: "POST", path: "/v1/locks/victim%2F1", body: fmt.Sprintf(`{"ttl":"2s","wait":"60s","lease":%q,"note":%q}`, rand.Text(), note), keepPlace: true}
		},
	}
}

// run attacks until ctx ends, and closes the connections.
func (a *attacker) run(ctx context.Context) {
	var work sync.WaitGroup
	defer func() {
		work.Wait()
		for _, c := range a.client {
			c.CloseIdleConnections()
		}
	}()
	repeat := func(next func() shot) {
		work.Go(func() {
			for ctx.Err() == nil {
				a.send(ctx, next())
			}
		})
	}
	a.send(ctx, shots()[0]()) // from now on an exclusive acquire of that lock is refused because of a crowd
	for range manyStreams {
		repeat(func() shot { return shot{kind: streams, method: "GET", path: "/v1/events", unread: time.Hour} })
	}
	for i := range maxWaiters + 10 { // for locks of the victim
		body := fmt.Sprintf(`{"ttl":"2s","wait":"60s","note":%q}`, strings.Repeat("n", 1024))
		repeat(func() shot {
			return shot{kind: waits, method: "POST", path: fmt.Sprintf("/v1/locks/victim%%2F%d", i%singles), body: body}
		})
	}
	for _, next := range shots() {
		repeat(next)
	}
	a.connect(ctx)
}

// send sends one request. After a refusal it pauses for less than a client should.
func (a *attacker) send(ctx context.Context, s shot) {
	const pause, hangsUp = 50 * time.Millisecond, 200 * time.Millisecond
	if s.keepPlace {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, hangsUp)
		defer cancel()
	}
	req, err := http.NewRequestWithContext(ctx, s.method, "https://"+a.f.addr+s.path, strings.NewReader(s.body))
	if err != nil {
		a.f.t.Error(err)
		return
	}
	if s.keepPlace {
		req.Header.Set("Holdfast-Keep-Place", "15s")
	}
	kind := s.kind
	if kind == "" {
		kind = quick
	}
	res, err := a.client[kind].Do(req)
	if err != nil {
		retry.Pause(ctx, pause)
		return
	}
	defer res.Body.Close()
	if !a.judged(s.method+" "+s.path, res, s.unread > 0) {
		retry.Pause(ctx, pause)
		return
	}
	retry.Pause(ctx, s.unread)
}

// judged checks an answer, and reports whether it is no refusal at a limit.
func (a *attacker) judged(what string, res *http.Response, unread bool) bool {
	a.f.judge(what, res.StatusCode, res.Header)
	refused := res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable
	if unread && !refused {
		return true
	}
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, limit := range refusals() {
		if strings.Contains(string(text), limit) {
			a.met[limit] = true
			refused = true
		}
	}
	return !refused
}

// connect opens connections and leaves them idle until ctx ends: with an identity, without one, and without a
// handshake.
func (a *attacker) connect(ctx context.Context) {
	const known, unknown, silent = 70, 150, 100
	nobody := a.conf.Clone()
	nobody.Certificates = nil
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	dial := func(as func(net.Conn) net.Conn) {
		if conn, err := (&net.Dialer{Timeout: time.Minute}).DialContext(ctx, "tcp", a.f.addr); err == nil {
			open = append(open, as(conn))
		}
	}
	for range known {
		dial(func(c net.Conn) net.Conn { return a.greet(ctx, c, a.conf, "/v1/locks/idle") })
	}
	for range unknown {
		dial(func(c net.Conn) net.Conn { return a.greet(ctx, c, nobody, "/healthz") })
	}
	for range silent {
		dial(func(c net.Conn) net.Conn { return c })
	}
	<-ctx.Done()
}

// greet sends a request on a new connection, and leaves it open.
func (a *attacker) greet(ctx context.Context, conn net.Conn, conf *tls.Config, path string) net.Conn {
	secure := tls.Client(conn, conf)
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := fmt.Fprintf(secure, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path); err != nil {
		return secure
	}
	res, err := http.ReadResponse(bufio.NewReader(secure), nil)
	if err != nil {
		return secure
	}
	defer res.Body.Close()
	a.judged("GET "+path, res, false)
	return secure
}

// streamsAgain opens as many streams as there were.
func (a *attacker) streamsAgain(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var open []io.Closer
	defer func() {
		for _, stream := range open {
			_ = stream.Close()
		}
	}()
	for i := range manyStreams {
		leasetest.Succeeds(t, func() error { // the server may take a while to learn of the end of the former ones
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+a.f.addr+"/v1/events", http.NoBody)
			if err != nil {
				return err
			}
			res, err := a.client[streams].Do(req)
			if err == nil {
				open = append(open, res.Body)
			}
			if err != nil || res.StatusCode != http.StatusOK {
				retry.Pause(ctx, 100*time.Millisecond)
				return fmt.Errorf("stream %d of an attacker after the flood: %w, %+v", i, err, res)
			}
			return nil
		})
	}
}
