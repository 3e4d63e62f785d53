package redislock_test

import (
	"cmp"
	"errors"
	"fmt"
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
		want.Config.Prefix = cmp.Or(want.Config.Prefix, redislock.DefaultPrefix)
		want.Config.RequestTimeout = cmp.Or(want.Config.RequestTimeout, redislock.DefaultRequestTimeout)
		want.Config.Quarantine = cmp.Or(want.Config.Quarantine, redislock.DefaultQuarantine)
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

func FuzzURL(f *testing.F) {
	leasetest.FuzzURL(f, func(raw string) error {
		p, err := redislock.ParseURL(raw)
		if err == nil && (p.Address == "" || p.Config.Prefix == "" || p.Config.RequestTimeout <= 0 || p.Config.Quarantine == 0) {
			err = fmt.Errorf("parsed as %+v", p)
		}
		return err
	}, append([]string{"redis://u:p@h:1/3?quarantine=10s&timeout=1s&prefix=my&client_name=x", "redis+unix:///run/redis.sock?db=2"}, badURLs...)...)
}

// The password is in no error, whatever goes wrong.
func TestSecrets(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.Redis(t, "--requirepass", secret)
	fails := func(err error) {
		t.Helper()
		if is(t, "a call", err, backend.ErrUnavailable); strings.Contains(fmt.Sprint(err), secret) {
			t.Errorf("error %q", err)
		}
	}
	wrong := secret + "wrong"
	for _, raw := range []string{
		"redis://:" + wrong + "@" + s.Addr(), "redis://user:" + secret + "@" + s.Addr(), "redis://" + s.Addr(), "rediss://:" + secret + "@" + s.Addr(),
		"redis://:" + secret + "@" + s.Addr() + "/99", "redis://:" + secret + "@nowhere.invalid", "redis+unix://:" + secret + "@/nowhere.sock",
	} {
		b, err := redislock.Open(within(t, patience), raw, redislock.Config{RequestTimeout: 500 * time.Millisecond})
		if err == nil {
			_ = b.Close()
		}
		fails(err)
	}
	// A slow disk answers in the time-out.
	b := withSession(t, openURL(t, "redis+unix://:"+secret+"@"+s.Socket()+"?quarantine=off&timeout=5s"))
	if err := b.try("one"); err != nil {
		t.Errorf("over the socket: %v", err)
	}
	s.Process().Stop()
	fails(b.try("two"))
	s.Process().Cont()
	s.Kill()
	fails(b.try("two"))
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	is(t, "after Close", b.try("two"), backend.ErrClosed)
}

// A Backend over the program's own client leaves it open.
func TestNew(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	for _, option := range []rueidis.ClientOption{
		{}, {AlwaysRESP2: true, DisableCache: true}, {DisableAutoPipelining: true}, {PipelineMultiplex: -1, ForceSingleClient: true},
	} {
		option.InitAddress = []string{s.Addr()}
		own, err := rueidis.NewClient(option)
		if err != nil {
			t.Fatal(err)
		}
		b, err := redislock.New(own, cfg)
		if err != nil {
			t.Fatal(err)
		}
		id, _ := lossy(t, b, time.Minute)
		c := &client{b, t, id}
		held, a := c.take("one"), c.asks("one", 1)
		c.give(held)
		c.give(a.granted(t))
		if err := errors.Join(b.EndSession(t.Context(), id), b.Close(), b.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := own.Do(t.Context(), own.B().Ping().Build()).Error(); err != nil {
			t.Errorf("the client was closed: %v", err)
		}
		for _, bad := range []redislock.Config{{Prefix: "a b"}, {RequestTimeout: -1}, {Quarantine: 25 * time.Hour}} {
			_, err := redislock.New(own, bad)
			is(t, fmt.Sprint(bad), err, backend.ErrInvalid)
		}
		own.Close()
	}
}
