package redislock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestURL(t *testing.T) {
	t.Parallel()
	defaults := redislock.Config{
		Prefix: redislock.DefaultPrefix, RequestTimeout: redislock.DefaultRequestTimeout, Quarantine: redislock.DefaultQuarantine,
	}
	for raw, want := range map[string]redislock.ParsedURL{
		"redis://":                {Address: "127.0.0.1:6379"},
		"redis://host":            {Address: "host:6379"},
		"redis://[::1]:7000/":     {Address: "[::1]:7000"},
		"redis://u:p%40@h:1/3":    {Address: "h:1", Username: "u", Password: "p@", DB: 3},
		"redis://:secret@h/?db=4": {Address: "h:6379", Password: "secret", DB: 4},
		"rediss://h":              {Address: "h:6379", TLS: true, ServerName: "h"},
		"rediss://h?server_name=other&client_name=x": {Address: "h:6379", TLS: true, ServerName: "other", ClientName: "x"},
		"redis+unix:///run/redis.sock?db=2":          {Address: "/run/redis.sock", Socket: true, DB: 2},
		"unix:///run/redis.sock":                     {Address: "/run/redis.sock", Socket: true},
		"redis://h?quarantine=off":                   {Address: "h:6379", Config: redislock.Config{Quarantine: redislock.NoQuarantine}},
		"redis://h?quarantine=10s&timeout=1s&prefix=my": {
			Address: "h:6379", Config: redislock.Config{Quarantine: 10 * time.Second, RequestTimeout: time.Second, Prefix: "my"},
		},
	} {
		got, err := redislock.ParseURL(raw)
		got.Config.Logger = nil
		if want.Config.Prefix == "" {
			want.Config.Prefix = defaults.Prefix
		}
		if want.Config.RequestTimeout == 0 {
			want.Config.RequestTimeout = defaults.RequestTimeout
		}
		if want.Config.Quarantine == 0 {
			want.Config.Quarantine = defaults.Quarantine
		}
		if err != nil || got != want {
			t.Errorf("%s: %+v %v; want %+v", raw, got, err, want)
		}
	}
	for _, raw := range badURLs {
		if got, err := redislock.ParseURL(raw); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: %+v %v", raw, got, err)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the password is in %q", raw, err)
		}
	}
}

const secret = "s3cretPassw0rd"

var badURLs = []string{
	"", "host:6379", "http://h", "redis:h", "redis://h/x", "redis://h/-1", "redis://h/1/2", "redis://h#f", "redis://h:port",
	"redis://u:" + secret + "@h:port", "redis://u:" + secret + "@h\x7f", "redis://u:" + secret + "@h/%zz", "redis://u:" + secret + "@h?a=%zz",
	"redis://h?quarantin=off", "redis://h?quarantine=", "redis://h?quarantine=on", "redis://h?quarantine=-1s", "redis://h?quarantine=48h",
	"redis://h?timeout=0s", "redis://h?timeout=1", "redis://h?db=1&db=2", "redis://h?db=x", "redis://h?prefix=a:b", "redis://h?prefix={}",
	"redis://h?ca=/x", "rediss://h?ca=/does/not/exist", "rediss://h?cert=/x", "rediss://h?cert=/x&key=/y", "redis://h?client_name=a%20b",
	"unix://host/x", "unix:///", "redis+unix://relative", "redis://u:" + secret + "@h?unknown=1",
}

// Whatever the URL is: it is understood, or it is an *InvalidError that does not contain the
// password.
func FuzzURL(f *testing.F) {
	for _, raw := range badURLs {
		f.Add(raw)
	}
	f.Add("redis://u:p@h:1/3?quarantine=10s&timeout=1s&prefix=my&client_name=x")
	f.Add("redis+unix:///run/redis.sock?db=2")
	f.Fuzz(func(t *testing.T, raw string) {
		p, err := redislock.ParseURL(raw)
		switch {
		case err != nil && !errors.Is(err, backend.ErrInvalid):
			t.Errorf("%q: %v", raw, err)
		case err == nil && (p.Address == "" || p.Config.Prefix == "" || p.Config.RequestTimeout <= 0 || p.Config.Quarantine == 0):
			t.Errorf("%q: %+v", raw, p)
		}
		const canary = "canary-7f3a"
		raw = strings.Replace(raw, "://", "://u:"+canary+"@", 1)
		if _, err := redislock.ParseURL(raw); err != nil && strings.Contains(err.Error(), canary) {
			t.Errorf("%q: the password is told: %v", raw, err)
		}
	})
}

// The password is in no error, whatever goes wrong.
func TestSecrets(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.Redis(t, "--requirepass", secret)
	var errs []error
	fails := func(raw string) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		b, err := redislock.Open(ctx, raw, redislock.Config{RequestTimeout: 500 * time.Millisecond})
		if err == nil {
			_ = b.Close()
			t.Errorf("%s was opened", raw)
			return
		}
		errs = append(errs, err)
	}
	wrong := secret + "wrong"
	fails("redis://:" + wrong + "@" + s.Addr())
	fails("redis://user:" + secret + "@" + s.Addr())
	fails("redis://" + s.Addr())
	fails("rediss://:" + secret + "@" + s.Addr())
	fails("redis://:" + secret + "@" + s.Addr() + "/99")
	fails("redis://:" + secret + "@nowhere.invalid")
	fails("redis+unix://:" + secret + "@/nowhere.sock")

	b, err := redislock.Open(t.Context(), "redis+unix://:"+secret+"@"+s.Socket(), redislock.Config{
		Quarantine: redislock.NoQuarantine, RequestTimeout: 5 * time.Second, // a slow disk answers in this time
	})
	if err != nil {
		t.Fatal(err)
	}
	id := session(t, b, time.Minute)
	if _, err := try(t, b, "one", id); err != nil {
		t.Errorf("over the socket: %v", err)
	}
	s.Process().Stop()
	_, err = try(t, b, "two", id)
	errs = append(errs, err)
	s.Process().Cont()
	s.Kill()
	_, err = try(t, b, "two", id)
	errs = append(errs, err)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	_, err = try(t, b, "two", id)
	if !errors.Is(err, backend.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	for _, err := range errs {
		if !errors.Is(err, backend.ErrUnavailable) || strings.Contains(err.Error(), secret) {
			t.Errorf("error %q", err)
		}
	}
}

// A Backend over the program's own client leaves it open.
func TestNew(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	for _, option := range []rueidis.ClientOption{
		{}, {AlwaysRESP2: true, DisableCache: true}, {DisableAutoPipelining: true}, {PipelineMultiplex: -1, ForceSingleClient: true},
	} {
		option.InitAddress = []string{s.Addr()}
		client, err := rueidis.NewClient(option)
		if err != nil {
			t.Fatal(err)
		}
		b, err := redislock.New(client, cfg)
		if err != nil {
			t.Fatal(err)
		}
		id := sessionWith(t, b, time.Minute, func(backend.Loss) {})
		held := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
		a := ask(t, b, backend.AcquireRequest{Name: "one", Session: id})
		inQueue(t, b, "one", 1)
		release(t, b, held)
		release(t, b, a.granted(t))
		if err := errors.Join(b.EndSession(t.Context(), id), b.Close(), b.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := client.Do(t.Context(), client.B().Ping().Build()).Error(); err != nil {
			t.Errorf("the client was closed: %v", err)
		}
		client.Close()
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr()}, ForceSingleClient: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, bad := range []redislock.Config{{Prefix: "a b"}, {RequestTimeout: -1}, {Quarantine: 25 * time.Hour}} {
		if b, err := redislock.New(client, bad); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%+v: %v %v", bad, b, err)
		}
	}
}
