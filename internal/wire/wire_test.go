package wire_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/wire"
)

func TestDecode(t *testing.T) {
	t.Parallel()
	var got wire.AcquireRequest
	body := `{"ttl":"1m30s","wait":"0s","owner":"ö\u00e9😀 😀","shared":true,"limit":3,"permits":2,"note":"a\\u00zz \"x\"","lease":"l"}`
	if err := wire.Decode([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	want := wire.AcquireRequest{
		TTL: wire.Duration(90 * time.Second), Owner: "öé😀 😀", Shared: true, Limit: 3, Permits: 2, Note: `a\u00zz "x"`, Lease: "l",
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, empty := range []string{"", " \n", "{}", " { } "} {
		if err := wire.Decode([]byte(empty), &got); err != nil {
			t.Errorf("%q: %v", empty, err)
		}
	}
	if err := wire.Decode([]byte(`{"owner":"\ud83d\ude00"}`), &got); err != nil || got.Owner != "😀" {
		t.Errorf("a whole pair: %q, %v", got.Owner, err)
	}
}

// Each of these is refused, with the field, the value and the bound.
func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"what":1}`: "body", `[]`: "body", `"x"`: "body", `1`: "body", `{}{}`: "body", `{} x`: "body", `{},`: "body",
		`{`: "body", `{"ttl"`: "body", `{"ttl":}`: "body", `{ttl:1}`: "body", `{"ttl":"30s",}`: "body", `{"ttl":"30s`: "body",
		"{\"owner\":\"\xff\"}": "body", "{\"owner\":\"\xed\xa0\x80\"}": "body", "{\"owner\":\"a\nb\"}": "body",
		`{"ttl":30}`: `ttl 30: must be a string like "30s"`, `{"ttl":"30"}`: `ttl "30": must be a string like "30s"`, `{"ttl":""}`: `ttl "": must be a string like "30s"`,
		`{"limit":1.5}`: "limit number 1.5: must be a whole number", `{"limit":"3"}`: "limit string: must be a whole number",
		`{"limit":99999999999999999999}`: "limit number 99999999999999999999: must be a whole number", `{"shared":1}`: "shared number: must be true or false",
	} {
		var req wire.AcquireRequest
		err := wire.Decode([]byte(body), &req)
		if bad, ok := errors.AsType[*backend.InvalidError](err); !ok || bad.Field != want && bad.Error() != want {
			t.Errorf("%s: error %v, want %s", body, err, want)
		}
	}
	var many wire.RenewManyRequest
	if err := wire.Decode([]byte(`{"leases":[{"name":"x","lease":"l","ttl":1}]}`), &many); err == nil || !strings.HasPrefix(err.Error(), "leases.ttl 1:") {
		t.Errorf("in a list: %v", err)
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	at := wire.Time{Time: time.Date(2026, 11, 20, 12, 30, 5, 999_999_999, time.FixedZone("x", 3600))}
	for want, v := range map[string]any{
		`{"name":"x","lease":"l","token":9223372036854775807,"owner":"","ttl":"30s","expires_at":"2026-11-20T11:30:05.999Z"}`: wire.Grant{Name: "x", Lease: "l", Token: 1<<63 - 1, TTL: wire.Duration(30 * time.Second), ExpiresAt: at},
		`{"name":"x","lease":"l","token":5,"ttl":"1m0s","expires_at":"2026-11-20T11:30:05.999Z"}`:                             wire.RenewResult{Name: "x", Lease: "l", Token: 5, TTL: wire.Duration(time.Minute), ExpiresAt: at},
		`{"name":"x","lease":"l","error":{"type":"t","title":"","status":410,"detail":""}}`:                                   wire.RenewResult{Name: "x", Lease: "l", Error: &wire.Problem{Type: "t", Status: 410}},
		`{"name":"x","limit":0,"holders":[],"waiters":[]}`:                                                                    wire.FromLock(backend.LockInfo{Name: "x"}, time.Now()),
		`{"type":"t","title":"","status":409,"detail":"","holders":[],"position":1}`:                                          wire.Problem{Type: "t", Status: 409, Holders: []wire.Holder{}, Position: 1},
		`{"type":"t","title":"","status":503,"detail":"","may_hold":false}`:                                                   wire.Problem{Type: "t", Status: 503, MayHold: new(false)},
		`{"leases":[{"name":"x","lease":"l","ttl":"30s"}]}`:                                                                   wire.RenewManyRequest{Leases: []wire.LeaseRef{{Name: "x", Lease: "l", TTL: wire.Duration(30 * time.Second)}}},
		`{}`: wire.AcquireRequest{},
	} {
		got, err := json.Marshal(v)
		if err != nil || string(got) != want {
			t.Errorf("%T gives\n%s, %v; want\n%s", v, got, err, want)
		}
		back := reflect.New(reflect.TypeOf(v))
		if err := json.Unmarshal(got, back.Interface()); err != nil {
			t.Errorf("%s: %v", got, err)
		}
		if again, err := json.Marshal(back.Interface()); err != nil || string(again) != want {
			t.Errorf("there and back: %s, %v", again, err)
		}
	}
}

// The state of a lock is the same after encoding and decoding.
func TestLockThereAndBack(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Millisecond)
	want := backend.LockInfo{
		Name: "x", Limit: 5, Token: 9,
		Holders: []backend.Holder{{Lease: "l", Owner: "o", Note: "n", Mode: backend.Shared, Permits: 3, Token: 9, Since: now, Left: 10 * time.Second}},
		Waiters: []backend.Waiter{{Lease: "w", Owner: "p", Mode: backend.Shared, Permits: 2, Note: "m", Since: now}},
	}
	b, err := json.Marshal(wire.FromLock(want, now))
	if err != nil {
		t.Fatal(err)
	}
	var l wire.Lock
	if err := json.Unmarshal(b, &l); err != nil {
		t.Fatal(err)
	}
	if got := l.Backend(now); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
}

// A body is refused, or it has one meaning: decoded, encoded and decoded again it is the
// same.
func fuzzDecode[T comparable](f *testing.F, seeds ...string) {
	f.Helper()
	for _, s := range append(seeds, `{}`, ``, `{"ttl":"30s"}`, `{"ttl":null}`, `{"a":{"b":[1,"\ud83d\ude00",true]}}`, `{"owner":"\ud800"}`) {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var v, again T
		if err := wire.Decode(body, &v); err != nil {
			return
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatalf("%+v cannot be encoded: %v", v, err)
		}
		if err := wire.Decode(b, &again); err != nil || v != again {
			t.Fatalf("%q is %+v; encoded as %s it is %+v, %v", body, v, b, again, err)
		}
	})
}

func FuzzDecodeAcquire(f *testing.F) {
	fuzzDecode[wire.AcquireRequest](f, `{"ttl":"1h","wait":"1s","owner":"o","shared":true,"limit":2,"permits":1,"note":"n","lease":"0123456789abcdef"}`)
}

func FuzzDecodeRenew(f *testing.F) { fuzzDecode[wire.RenewRequest](f) }

func FuzzDecodeRenewMany(f *testing.F) {
	f.Add([]byte(`{"leases":[{"name":"x","lease":"0123456789abcdef","ttl":"30s"}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var v, again wire.RenewManyRequest
		if err := wire.Decode(body, &v); err != nil {
			return
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if v.Leases == nil {
			return // it is required; the server refuses it
		}
		if err := wire.Decode(b, &again); err != nil || !reflect.DeepEqual(v, again) {
			t.Fatalf("%q is %+v; encoded as %s it is %+v, %v", body, v, b, again, err)
		}
	})
}

func FuzzDecodeBatch(f *testing.F) {
	f.Add([]byte(`{"acquire":[{"name":"x","lease":"0123456789abcdef","ttl":"30s","owner":"o","shared":true,"limit":3,"permits":2,"note":"n"}],"release":[{"name":"x","lease":"0123456789abcdeg"}]}`))
	f.Add([]byte(`{"acquire":[{"name":"x","lease":"l","wait":"1s"}]}`))
	f.Add([]byte(`{"release":[{}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var v, again wire.BatchRequest
		if err := wire.Decode(body, &v); err != nil {
			return
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if len(v.Acquire) == 0 || len(v.Release) == 0 {
			return // an empty list is omitted
		}
		if err := wire.Decode(b, &again); err != nil || !reflect.DeepEqual(v, again) {
			t.Fatalf("%q is %+v; encoded as %s it is %+v, %v", body, v, b, again, err)
		}
	})
}

// Nothing that a client reads from a server must harm it.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"type":"t","status":409,"holders":[{"token":1,"since":"2026-11-20T11:30:05.999Z"}],"position":-1}`))
	f.Fuzz(func(_ *testing.T, body []byte) {
		var p wire.Problem
		var l wire.List
		var e wire.Event
		if json.Unmarshal(body, &p) == nil {
			wire.ToHolders(p.Holders, time.Now())
		}
		if json.Unmarshal(body, &l) == nil {
			for _, lock := range l.Locks {
				lock.Backend(time.Now())
			}
		}
		if json.Unmarshal(body, &e) == nil {
			e.Backend("acquired")
		}
	})
}
