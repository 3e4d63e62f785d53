package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

const batchPath = "/v1/leases/batch"

// lines returns the results of a batch, by the list and the index in it: "acquire 0".
func lines(t *testing.T, body []byte) map[string]wire.BatchResult {
	t.Helper()
	out := make(map[string]wire.BatchResult)
	for line := range bytes.Lines(body) {
		res := resultOf(t, line)
		key := fmt.Sprintf("%s %d", res.Op, res.Item)
		if _, twice := out[key]; twice {
			t.Errorf("%s has two results", key)
		}
		out[key] = res
	}
	return out
}

func resultOf(t *testing.T, line []byte) wire.BatchResult {
	t.Helper()
	var res wire.BatchResult
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&res); err != nil {
		t.Fatalf("line %q: %v", line, err)
	}
	return res
}

func (a *api) batch(body string) map[string]wire.BatchResult {
	a.t.Helper()
	got := a.call("POST", batchPath, body)
	if got.status != 200 || got.header.Get("Content-Type") != wire.ContentTypeLines {
		a.t.Fatalf("%s: status %d, %s: %s", body, got.status, got.header.Get("Content-Type"), got.body)
	}
	return lines(a.t, got.body)
}

// told compares the results with the status that each should have; 200 is success.
func told(t *testing.T, got map[string]wire.BatchResult, want map[string]int) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d results, want %d: %+v", len(got), len(want), got)
	}
	for key, status := range want {
		res := got[key]
		switch {
		case status == 200 && res.Error != nil:
			t.Errorf("%s: %+v", key, *res.Error)
		case status == 200 && res.Op == wire.OpAcquire && (!res.Token.Valid() || res.TTL <= 0 || res.ExpiresAt.IsZero()):
			t.Errorf("%s: %+v is no grant", key, res)
		case status != 200 && (res.Error == nil || res.Error.Status != status || res.Time.IsZero() || res.Token != 0):
			t.Errorf("%s: %+v with problem %+v, want one of %d", key, res, res.Error, status)
		}
	}
}

func TestBatch(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	held := a.take("held", `{"owner":"first"}`)
	mine := a.take("mine", `{}`)
	a.take("limited", `{"limit":3}`)
	got := a.batch(fmt.Sprintf(`{"acquire":[
		{"name":"a/b","lease":"my-own-lease-0000","ttl":"1m","owner":"o","note":"n"},
		{"name":"held","lease":"my-own-lease-0001"},
		{"name":"sem","lease":"my-own-lease-0002","limit":3,"permits":2},
		{"name":"sem","lease":"my-own-lease-0003","shared":true,"limit":3},
		{"name":"limited","lease":"my-own-lease-0004","limit":4},
		{"name":"a//b","lease":"my-own-lease-0005"},
		{"name":"b"},
		{"name":"b","lease":"my-own-lease-0007","ttl":"1ms"},
		{"name":"b","lease":"my-own-lease-0008","limit":2,"permits":3}
	],"release":[
		{"name":"mine","lease":%q},
		{"name":"mine","lease":"my-own-lease-0009"},
		{"name":"mine","lease":"bad"}
	]}`, mine.Lease))
	told(t, got, map[string]int{
		"acquire 0": 200, "acquire 1": 409, "acquire 2": 200, "acquire 3": 200, "acquire 4": 400, "acquire 5": 400, "acquire 6": 400,
		"acquire 7": 400, "acquire 8": 400, "release 0": 200, "release 1": 410, "release 2": 400,
	})
	if g := got["acquire 0"]; g.Name != "a/b" || g.Lease != "my-own-lease-0000" || g.TTL.String() != "1m0s" {
		t.Errorf("grant %+v", g)
	}
	if p := got["acquire 1"].Error; p.Type != wire.TypeHeld || p.Position != 1 || len(p.Holders) != 1 || p.Holders[0].Token != held.Token {
		t.Errorf("held: %+v", p)
	}
	if p := got["acquire 4"].Error; p.Type != wire.TypeLimit || p.InForce == nil || *p.InForce != 3 {
		t.Errorf("limit: %+v", p)
	}
	if h := a.inspect("a/b").Holders; len(h) != 1 || h[0].Owner != "o" || h[0].Note != "n" || h[0].Token != got["acquire 0"].Token {
		t.Errorf("holders %+v", h)
	}
	if l := a.inspect("sem"); l.Limit != 3 || len(l.Holders) != 2 {
		t.Errorf("semaphore %+v", l)
	}
	for _, free := range []string{"mine", "b"} {
		if h := a.inspect(free).Holders; len(h) != 0 {
			t.Errorf("%s has holders %+v", free, h)
		}
	}
	if l := a.inspect("held"); len(l.Waiters) != 0 {
		t.Errorf("the queue is not empty: %+v", l.Waiters)
	}
}

// Several items of one batch name the same lock, or the same lease.
func TestBatchOfOneLock(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	got := a.batch(`{"acquire":[{"name":"x","lease":"my-own-lease-0001"},{"name":"x","lease":"my-own-lease-0002"}]}`)
	first, second := got["acquire 0"], got["acquire 1"]
	if (first.Error == nil) == (second.Error == nil) || len(a.inspect("x").Holders) != 1 {
		t.Errorf("one lock for two: %+v, %+v", first, second)
	}
	got = a.batch(`{"acquire":[{"name":"y","lease":"my-own-lease-0001"},{"name":"y","lease":"my-own-lease-0001"}]}`)
	told(t, got, map[string]int{"acquire 0": 200, "acquire 1": 200})
	if got["acquire 0"].Token != got["acquire 1"].Token || len(a.inspect("y").Holders) != 1 {
		t.Errorf("C6: one lease ID is one grant: %+v", got)
	}
	// The release of a lock comes first: the lock is free for an acquire in the same batch.
	for i := range 20 {
		got = a.batch(fmt.Sprintf(`{"acquire":[{"name":"y","lease":"my-own-lease-%d"}],"release":[{"name":"y","lease":"my-own-lease-%d"}]}`, 1002+i, 1001+i))
		if i == 0 {
			told(t, got, map[string]int{"acquire 0": 409, "release 0": 410}) // another lease has it
			a.release("y", "my-own-lease-0001", 204)
			a.take("y", `{"lease":"my-own-lease-1002"}`)
			continue
		}
		told(t, got, map[string]int{"acquire 0": 200, "release 0": 200})
	}
	// So a lease that is acquired and released in one batch is abandoned, and never held.
	got = a.batch(`{"acquire":[{"name":"z","lease":"my-own-lease-0001"}],"release":[{"name":"z","lease":"my-own-lease-0001"},{"name":"z","lease":"my-own-lease-0001"}]}`)
	told(t, got, map[string]int{"acquire 0": 410, "release 0": 410, "release 1": 410})
	if h := a.inspect("z").Holders; len(h) != 0 {
		t.Errorf("holders %+v", h)
	}
	a.take("once", `{"lease":"my-own-lease-0001"}`)
	got = a.batch(`{"release":[{"name":"once","lease":"my-own-lease-0001"},{"name":"once","lease":"my-own-lease-0001"}]}`)
	if one, two := got["release 0"], got["release 1"]; (one.Error == nil) == (two.Error == nil) {
		t.Errorf("one lease released twice: %+v, %+v", one, two)
	}
}

func TestBatchIsBounded(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	item := func(i int) string { return fmt.Sprintf(`{"name":"x%d","lease":"my-own-lease-000%d"}`, i, i) }
	for _, bad := range []string{
		`{}`, `{"acquire":[],"release":[]}`, `[]`, `{"acquire":[` + strings.Repeat(item(0)+`,`, 200) + item(1) + `],"release":[` + strings.Repeat(item(2)+`,`, 55) + item(3) + `]}`,
		`{"acquire":[{"name":"x0","lease":"my-own-lease-0000","wait":"1s"}]}`, `{"acquire":[{"name":"x0","lease":"my-own-lease-0000"},1]}`,
		`{"release":[{"name":"x0","lease":"my-own-lease-0000","ttl":"1s"}]}`, `{"renew":[]}`, `{"acquire":null}`, `{"acquire":[` + item(0) + `]`,
	} {
		p := want[wire.Problem](a, 400, "POST", batchPath, bad)
		if p.Type != wire.TypeInvalid {
			t.Errorf("%s: %+v", bad, p)
		}
	}
	if h := a.inspect("x0").Holders; len(h) != 0 {
		t.Errorf("a batch that was refused took %+v", h)
	}
	told(t, a.batch(`{"acquire":[`+item(0)+`,`+item(1)+`],"release":[`+item(2)+`]}`), map[string]int{"acquire 0": 200, "acquire 1": 200, "release 0": 410})
}

// Every lock in a batch is authorised, for the operation on it.
func TestBatchIsAuthorized(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Authorize: teamA})
	got := a.batch(`{"acquire":[{"name":"team-a/x","lease":"my-own-lease-0001"},{"name":"team-ab/x","lease":"my-own-lease-0002"}],
		"release":[{"name":"team-a/y","lease":"my-own-lease-0003"},{"name":"team-ab/y","lease":"my-own-lease-0004"}]}`)
	told(t, got, map[string]int{"acquire 0": 200, "acquire 1": 403, "release 0": 410, "release 1": 403})
	if info, err := a.b.Inspect(t.Context(), "team-ab/x"); err != nil || len(info.Holders) != 0 {
		t.Errorf("it was taken: %+v, %v", info, err)
	}
}

// gated is a real backend in which acquires of one lock are blocked.
type gated struct {
	backend.Backend
	name   string
	gate   chan struct{} // closed: they continue
	inside chan struct{} // gets a value for each acquire that has arrived
}

func (g *gated) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	if r.Name == g.name {
		g.inside <- struct{}{}
		select {
		case <-g.gate:
		case <-ctx.Done():
			return backend.Grant{}, context.Cause(ctx)
		}
	}
	return g.Backend.Acquire(ctx, r)
}

func startGated(t *testing.T, cfg server.Config) (*api, *gated) {
	t.Helper()
	g := &gated{Backend: memlock.New(), name: "slow", gate: make(chan struct{}), inside: make(chan struct{}, 10)}
	return serve(t, &faulty{Backend: g}, cfg), g
}

// stream sends a batch and returns the lines as they arrive.
func (a *api) stream(ctx context.Context, body string) *bufio.Reader {
	a.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base+batchPath, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	res, err := a.http.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { res.Body.Close() })
	return bufio.NewReader(res.Body)
}

func (a *api) next(r *bufio.Reader) wire.BatchResult {
	a.t.Helper()
	line, err := r.ReadBytes('\n')
	if err != nil {
		a.t.Fatal(err)
	}
	return resultOf(a.t, line)
}

// A lock whose backend does not answer delays no other answer.
func TestBatchWithASlowLock(t *testing.T) {
	t.Parallel()
	a, g := startGated(t, server.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r := a.stream(ctx, `{"acquire":[{"name":"slow","lease":"my-own-lease-0000"},{"name":"x","lease":"my-own-lease-0001"},{"name":"y","lease":"my-own-lease-0002"}],
		"release":[{"name":"z","lease":"my-own-lease-0003"}]}`)
	for range 3 {
		if res := a.next(r); res.Name == "slow" {
			t.Errorf("%+v while it is held up", res)
		}
	}
	close(g.gate)
	if res := a.next(r); res.Name != "slow" || res.Error != nil {
		t.Errorf("%+v", res)
	}
	if rest, err := io.ReadAll(r); err != nil || len(rest) != 0 {
		t.Errorf("after the last line %q, %v", rest, err)
	}
}

// A server that stops answers all items. A batch whose client is gone ends.
func TestBatchIsCutShort(t *testing.T) {
	t.Parallel()
	a, g := startGated(t, server.Config{})
	gone, cancel := context.WithCancel(t.Context())
	hangsUp := make(chan error, 1)
	go func() {
		_, err := a.do(gone, "POST", batchPath, `{"acquire":[{"name":"slow","lease":"my-own-lease-0000"}]}`)
		hangsUp <- err
	}()
	<-g.inside
	stays := a.send("POST", batchPath, `{"acquire":[{"name":"slow","lease":"my-own-lease-0001"},{"name":"x","lease":"my-own-lease-0002"}]}`)
	<-g.inside
	cancel()
	if err := <-hangsUp; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	leasetest.Eventually(t, "x is taken", func() bool {
		info, err := a.b.Inspect(t.Context(), "x")
		return err == nil && len(info.Holders) == 1
	})
	if err := a.stop(); err != nil {
		t.Error(err)
	}
	got := lines(t, stays.get(t).body)
	told(t, got, map[string]int{"acquire 0": 503, "acquire 1": 200})
	if p := got["acquire 0"].Error; p.Type != wire.TypeStopping || p.MayHold == nil || !*p.MayHold {
		t.Errorf("%+v", p)
	}
}

// An item that the backend does not answer has an unknown outcome, and may be retried.
func TestBatchBackendAway(t *testing.T) {
	t.Parallel()
	virtual(t, inMemory, server.Config{}, func(t *testing.T, a *api) { //nolint:thelper // it is the test
		mine := a.take("mine", `{"lease":"my-own-lease-0000"}`)
		a.b.away.Store(true)
		body := `{"acquire":[{"name":"x","lease":"my-own-lease-0001"}],"release":[{"name":"mine","lease":"` + mine.Lease + `"}]}`
		got := a.batch(body)
		told(t, got, map[string]int{"acquire 0": 503, "release 0": 503})
		for key, res := range got {
			if p := res.Error; p.Type != wire.TypeUnavailable || p.MayHold == nil || !*p.MayHold {
				t.Errorf("%s: %+v", key, p)
			}
		}
	})
}

// A batch of as many items as may be in one is served as a whole.
func TestBatchOfMany(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	for _, op := range []string{"acquire", "release"} {
		items, want := make([]string, 256), make(map[string]int)
		for i := range items {
			items[i] = fmt.Sprintf(`{"name":"many/%d","lease":"my-own-lease-%04d"}`, i, i)
			want[fmt.Sprint(op, " ", i)] = 200
		}
		told(t, a.batch(`{"`+op+`":[`+strings.Join(items, ",")+`]}`), want)
	}
}
