package remotelock

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/wire"
)

func threeItems() []*item {
	return []*item{
		{op: wire.OpAcquire, req: backend.AcquireRequest{Name: "x", Lease: "lease-0000000001", TTL: time.Minute}, done: make(chan outcome, 1)},
		{op: wire.OpAcquire, req: backend.AcquireRequest{Name: "y", Lease: "lease-0000000002", TTL: time.Minute}, done: make(chan outcome, 1)},
		{op: wire.OpRelease, req: backend.AcquireRequest{Name: "x", Lease: "lease-0000000003"}, done: make(chan outcome, 1)},
	}
}

// readFor returns the outcomes of the items that the answer gives.
func (b *Backend) readFor(items []*item, answer string) []outcome {
	m := newManifest(items)
	err := b.parseLines(m, strings.NewReader(answer), func() {})
	m.rest(func(it *item) outcome { return outcome{err: b.failed(b.life, it.call(), err)} })
	out := make([]outcome, len(items))
	for i, it := range items {
		out[i] = <-it.done
	}
	return out
}

// FuzzBatch reads an arbitrary answer to a batch: every item gets one outcome, and a success
// only from a line for this very item.
func FuzzBatch(f *testing.F) {
	const (
		x       = `{"op":"acquire","item":0,"name":"x","lease":"lease-0000000001","token":5,"ttl":"30s","expires_at":"2026-11-20T11:30:05.999Z"}` + "\n"
		y       = `{"op":"acquire","item":1,"name":"y","lease":"lease-0000000002","error":{"type":"urn:holdfast:problem:held","status":409,"holders":[{"token":9,"expires_at":"2026-11-20T11:30:05.999Z"}]},"time":"2026-11-20T11:30:04.999Z"}` + "\n"
		release = `{"op":"release","item":0,"name":"x","lease":"lease-0000000003"}` + "\n"
	)
	for _, answer := range []string{
		x + y + release, release + y + x, "", "\n", "{}\n", x + x, x + y + strings.TrimSuffix(release, "\n"), x + y + release + "more",
		strings.Replace(x, `"item":0`, `"item":1`, 1), strings.Replace(x, `"item":0`, `"item":-1`, 1), strings.Replace(x, `"item":0`, `"item":9`, 1),
		strings.Replace(x, `"x"`, `"y"`, 1), strings.Replace(x, `001"`, `002"`, 1), strings.Replace(x, `5`, `0`, 1), strings.Replace(x, `30s`, `0s`, 1),
		strings.Replace(x, `"acquire"`, `"renew"`, 1), strings.Replace(x, `"acquire"`, `"release"`, 1), `<html>` + "\n",
		strings.Replace(y, `"holders"`, `"what":"`+strings.Repeat("w", 40_000)+`","holders"`, 1),
	} {
		f.Add(answer)
	}
	b, err := New("holdfast://localhost", Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = b.Close() })
	f.Fuzz(func(t *testing.T, answer string) {
		items := threeItems()
		for i, o := range b.readFor(items, answer) {
			if o.alone {
				t.Errorf("item %d is to be retried, though it was sent", i)
			}
			if away, ok := errors.AsType[*backend.UnavailableError](o.err); ok && away.Op != items[i].op {
				t.Errorf("item %d: %v", i, o.err)
			}
			if o.err != nil {
				continue
			}
			if !hasResult(answer, items[i]) {
				t.Errorf("item %d worked: %+v by %q", i, o.grant, answer)
			}
			if items[i].op == wire.OpAcquire && (!o.grant.Token.Valid() || o.grant.Left <= 0) {
				t.Errorf("item %d is no grant: %+v", i, o.grant)
			}
		}
	})
}

// hasResult reports whether a whole line of the answer is for the item.
func hasResult(answer string, it *item) bool {
	for line := range strings.Lines(answer) {
		var got wire.BatchResult
		if strings.HasSuffix(line, "\n") && json.Unmarshal([]byte(line), &got) == nil && got.Op == it.op && got.Lease == string(it.req.Lease) {
			return true
		}
	}
	return false
}

// A result for another item, or for none, is never a grant.
func TestStrangeResults(t *testing.T) {
	t.Parallel()
	b, err := New("holdfast://localhost", Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	const good = `{"op":"acquire","item":0,"name":"x","lease":"lease-0000000001","token":5,"ttl":"1h"}`
	o := b.readFor(threeItems(), good+"\n")
	if o[0].err != nil || o[0].grant.Token != 5 {
		t.Fatalf("a grant: %+v", o[0])
	}
	if o[0].grant.Left != time.Minute {
		t.Errorf("a server that gives more than was asked for: %+v", o[0])
	}
	o = b.readFor(threeItems(), strings.Replace(good, "1h", "10s", 1)+"\n")
	if o[0].err != nil || o[0].grant.Left != 10*time.Second {
		t.Errorf("a lease that was out before: %+v", o[0])
	}
	for _, change := range [][2]string{
		{`"acquire"`, `"release"`},
		{`"acquire"`, `"renew"`},
		{`"item":0`, `"item":1`},
		{`"item":0`, `"item":-1`},
		{`"item":0`, `"item":2`},
		{`"x"`, `"y"`},
		{`001"`, `003"`},
		{`:5`, `:0`},
		{`:5`, `:9223372036854775808`},
		{`1h`, `0s`},
		{`1h`, `-1s`},
		{`}`, ``},
		{`{`, ``},
		{good, ``},
		{good, `[]`},
		{good, `null`},
	} {
		for i, o := range b.readFor(threeItems(), strings.Replace(good, change[0], change[1], 1)+"\n") {
			if away, ok := errors.AsType[*backend.UnavailableError](o.err); !ok || !away.MayHold {
				t.Errorf("%s: item %d: %+v, %v", change, i, o.grant, o.err)
			}
		}
	}
	for i, o := range b.readFor(threeItems(), good) { // its end is missing
		if away, ok := errors.AsType[*backend.UnavailableError](o.err); !ok || !away.MayHold {
			t.Errorf("half a line: item %d: %+v, %v", i, o.grant, o.err)
		}
	}
}
