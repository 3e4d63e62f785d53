package runner

import (
	"slices"
	"testing"
	"time"
)

// The same seed gives the same plan, different seeds give different ones, and every profile
// keeps its promises.
func TestPlan(t *testing.T) {
	t.Parallel()
	able := abilities{processes: true, relay: true}
	for _, p := range Profiles() {
		const ttl, long = time.Second, time.Minute
		first := plan(7, p, able, ttl, long)
		if len(first) < 5 || !slices.Equal(first, plan(7, p, able, ttl, long)) || slices.Equal(first, plan(8, p, able, ttl, long)) {
			t.Errorf("%s: the plan does not follow from the seed: %v", p, first)
		}
		for _, f := range first {
			if f.at >= long || f.worker >= p.measure().exposed() || p == Gentle && (f.lasts >= ttl || f.fault == faultKill || f.fault == faultFreeze) ||
				p == Jepsen && f.fault != faultFreeze || f.fault.harmful() && p != Gentle && f.lasts < ttl {
				t.Errorf("%s: %+v", p, f)
			}
		}
	}
	for _, f := range plan(1, Torture, abilities{processes: true, relay: true, tied: true}, time.Second, time.Minute) {
		switch f.fault { //nolint:exhaustive // the others break no connection before its lease has ended
		case faultReset, faultRefuse, faultHalfServer, faultHalfClient, faultLoseReply:
			t.Errorf("%v where leases end with their connection", f.fault)
		}
	}
	for _, f := range plan(1, Gentle, abilities{processes: true, relay: true, tied: true}, time.Second, time.Minute) {
		if f.fault == faultCut || f.fault == faultCutReplies {
			t.Errorf("%v for %s, and then the connection goes, with leases of a second", f.fault, f.lasts)
		}
	}
	for _, f := range plan(1, Torture, abilities{link: true}, time.Second, time.Minute) {
		if f.fault == faultFreeze || f.fault == faultReset {
			t.Errorf("%v without a process and a relay", f.fault)
		}
	}
	if got := plan(1, Gentle, abilities{processes: true}, time.Second, time.Minute); got != nil {
		t.Errorf("faults without a network: %v", got)
	}
}

// When all workers that may have a fault have one, or as many as may have one at a time, no
// other worker gets one.
func TestSparedWorkersAreNotHurt(t *testing.T) {
	t.Parallel()
	for _, p := range Profiles() {
		m := p.measure()
		m.maxFaulty = m.workers
		r := &run{measure: m, busy: make([]bool, m.workers), workers: make([]*workerHandle, m.workers)}
		for n := range m.exposed() {
			if _, whom, ok := r.reserveTarget(0); !ok || whom != n {
				t.Errorf("%s: fault %d is for worker %d, %v", p, n, whom, ok)
			}
		}
		if _, whom, ok := r.reserveTarget(0); ok {
			t.Errorf("%s: worker %d is spared, and has a fault", p, whom)
		}
	}
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		url  string
		with string // with the hosts x:1, x:2 and so on instead
	}{
		{"redis://h", "redis://x:1"},
		{"redis://u:p@h:7/3?prefix=a", "redis://u:p@x:1/3?prefix=a"},
		{"etcd://a:1,b,[::1]:3", "etcd://x:1,x:2,x:3"},
		{"zookeeper://localhost,[::1]/path", "zookeeper://x:1,x:2/path"},
		{"zookeeper://a,b/path?tls=false", "zookeeper://x:1,x:2/path?tls=false"},
		{"zookeeper://a,b/path", ""},
		{"postgres://u@h/db?sslmode=disable", "postgres://u@x:1/db?sslmode=disable"},
		{"postgres://u@h/db?sslmode=verify-full", ""},
		{"postgres://u@h/db", ""},
		{"mysql://u:p@127.0.0.1/db", "mysql://u:p@x:1/db"},
		{"mysql://u:p@h/db?tls=preferred", "mysql://u:p@x:1/db?tls=preferred"},
		{"mysql://u:p@h/db", ""},
		{"mysql://u:p@h/db?tls=true", ""},
		{"mysql://u:p@h/db?ca=x", ""},
		{"mysql+getlock://u:p@localhost/db", "mysql+getlock://u:p@x:1/db"},
		{"postgres+advisory://u@127.0.0.1/db", "postgres+advisory://u@x:1/db"},
		{"postgres+advisory://u@h/db?sslmode=verify-ca", ""},
		{"rediss://h", ""},
		{"sqlite:///x", ""},
		{"memory://", ""},
		{"redis://", ""},
		{"what", ""},
	} {
		e, ok := parseEndpoints(c.url)
		hosts := []string{"x:1", "x:2", "x:3"}
		if ok != (c.with != "") || ok && e.with(hosts[:len(e.hosts)]) != c.with {
			t.Errorf("%s: %+v %v", c.url, e, ok)
		}
	}
}
