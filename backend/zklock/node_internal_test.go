package zklock

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
)

// The names alone determine the queue: see newQueue.
func TestQueueOfNodes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		nodes []string
		order string // of the leases
		out   int
	}{
		"nobody":         {nil, "", 0},
		"first come":     {[]string{"x.0.1.b.s.0000000002", "x.0.1.a.s.0000000001"}, "ab", 1},
		"readers":        {[]string{"s.0.1.a.s.0000000001", "s.0.1.b.s.0000000002", "x.0.1.c.s.0000000003", "s.0.1.d.s.0000000004"}, "abcd", 2},
		"permits":        {[]string{"s.3.2.a.s.0000000001", "s.3.2.b.s.0000000002", "s.3.1.c.s.0000000003"}, "abc", 1},
		"asked twice":    {[]string{"x.0.1.a.s.0000000001", "x.0.1.b.s.0000000002", "x.0.1.a.s.0000000003"}, "ab", 1},
		"not ours":       {[]string{"x.0.1.a.s.0000000001", "something", "x.0.1.a.s", "z.0.1.b.s.0000000000", "x.0.1.c.s.99999999999"}, "a", 1},
		"no place":       {[]string{fmt.Sprintf("x.0.1.c.s.%010d", math.MinInt32), fmt.Sprintf("x.0.1.d.s.%010d", math.MaxInt32), fmt.Sprintf("x.0.1.e.s.%010d", places)}, "", 0},
		"the last place": {[]string{fmt.Sprintf("x.0.1.b.s.%010d", places), fmt.Sprintf("x.0.1.a.s.%010d", places-1)}, "a", 1},
	} {
		q := newQueue(tc.nodes)
		var order []byte
		for _, e := range q.All {
			order = append(order, e.lease...)
		}
		if string(order) != tc.order || q.Out != tc.out {
			t.Errorf("%s: %q with %d out, want %q with %d", name, order, q.Out, tc.order, tc.out)
		}
	}
}

func FuzzEntry(f *testing.F) {
	f.Add("x.0.1.LEASE.SESSION.0000000012")
	f.Add("s.3.2.LEASE.SESSION.-2147483648")
	f.Fuzz(func(t *testing.T, s string) {
		e, ok := parseEntry(s)
		if !ok {
			return
		}
		req := backend.AcquireRequest{Lease: e.lease, Session: e.session, Mode: e.claim.Mode, Limit: e.claim.Limit, Permits: e.claim.Permits}
		again, ok := parseEntry(prefix(&req) + fmt.Sprintf("%010d", e.place))
		again.node = e.node
		if e.claim.Permits > 0 && (!ok || again != e) {
			t.Errorf("%q is %+v, and again %+v", s, e, again)
		}
	})
}

func FuzzURL(f *testing.F) {
	for _, s := range []string{"zookeeper://a", "zookeeper://u:p@a:1,b:2/x/y?tick=1s&max_session=1m", "zookeeper://a?x=1", "zookeeper://@/", "zookeeper:///x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		cfg, err := parseURL(s, Config{})
		if err == nil {
			err = cfg.withDefaults()
		}
		if err == nil && (len(cfg.Servers) == 0 || cfg.Path == "") {
			t.Errorf("%q is %+v", s, cfg)
		}
	})
}

func TestURL(t *testing.T) {
	t.Parallel()
	cfg, err := parseURL("zookeeper://u:p%40@a,b:99,[::1]/x/y?tick=500ms&max_session=1m", Config{})
	if err != nil || !slices.Equal(cfg.Servers, []string{"a:2181", "b:99", "[::1]:2181"}) || cfg.Path != "/x/y" || cfg.User != "u" || cfg.Password != "p@" ||
		cfg.Tick.String() != "500ms" || cfg.MaxSession.String() != "1m0s" {
		t.Errorf("%+v, %v", cfg, err)
	}
	for _, bad := range []string{
		"", "zookeeper://", "zk://a", "zookeeper://a?x=1", "zookeeper://a?tick=1", "zookeeper://a?tick=1s&tick=2s", "zookeeper://a#b", "zookeeper://:p@a",
		"zookeeper://a:0", "zookeeper://a,,b", "zookeeper://a/b//c", "zookeeper://a/b c", "zookeeper://a/zookeeper", "zookeeper://a\n", "zookeeper://a/../b",
	} {
		if _, err := parseURL(bad, Config{}); err == nil {
			t.Errorf("%q is no error", bad)
		}
	}
	for raw, want := range map[string]bool{ // what crosses a network is verified unless the URL says otherwise
		"zookeeper://h": true, "zookeeper://127.0.0.1,h": true, "zookeeper://localhost": false, "zookeeper://[::1]": false,
		"zookeeper://h?tls=false": false, "zookeeper://localhost?tls=true": true, "zookeeper://localhost?server_name=x": true,
	} {
		cfg, err := parseURL(raw, Config{})
		if err != nil || (cfg.TLS != nil) != want || want && cfg.TLS.InsecureSkipVerify {
			t.Errorf("%s: %+v, %v", raw, cfg.TLS, err)
		}
	}
	for _, bad := range []Config{{}, {Servers: []string{"a/b"}}, {Servers: []string{"a"}, Tick: 1}, {Servers: []string{"a"}, MaxSession: 1}, {Servers: []string{"a"}, Path: "x"}} {
		if err := bad.withDefaults(); err == nil {
			t.Errorf("%+v is no error", bad)
		}
	}
}
