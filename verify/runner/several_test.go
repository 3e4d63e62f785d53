//go:build unix

package runner_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/open"
	"github.com/holdfast-io/holdfast/verify"
	"github.com/holdfast-io/holdfast/verify/history"
)

// site has three etcd and two servers that keep their locks in it.
type site struct {
	t       *testing.T
	etcd    []*testserver.Etcd
	servers []*testserver.Process
	addrs   []string
	url     string // of the servers
}

func startSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, etcd: testserver.StartEtcd(t, testserver.EtcdOptions{Members: 3}), servers: make([]*testserver.Process, 2)}
	for i := range s.servers {
		s.addrs = append(s.addrs, fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t)))
		s.startServer(i)
	}
	s.url = "holdfast://" + strings.Join(s.addrs, ",")
	return s
}

func (s *site) startServer(i int) {
	s.t.Helper()
	s.servers[i] = testserver.Start(s.t, testserver.Command{
		Path: testserver.Holdfast(s.t), Args: []string{"serve", "--listen", s.addrs[i], "--backend", "etcd://" + strings.Join(testserver.Endpoints(s.etcd), ",")},
	})
	s.servers[i].Await(time.Minute, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addrs[i]+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return errors.New(res.Status)
		}
		return nil
	})
}

// eachInTurn kills and freezes each process in turn, one server and one etcd at a time, and heals both. disturbed is called
// in between. Clients use the first server at the start, and always one that answers.
func (s *site) eachInTurn(disturbed func(what string)) {
	again := func(i int) func() { return func() { s.startServer(i) } }
	for _, f := range []struct {
		what                   string
		server, etcd           func()
		serverAgain, etcdAgain func()
	}{
		{"server 0 is killed and etcd 0 is frozen", s.servers[0].Kill, s.etcd[0].Process().Stop, again(0), s.etcd[0].Process().Cont},
		{"server 1 is frozen and etcd 1 is killed", s.servers[1].Stop, s.etcd[1].Kill, s.servers[1].Cont, s.etcd[1].Start},
		{"server 1 is killed and etcd 2 is frozen", s.servers[1].Kill, s.etcd[2].Process().Stop, again(1), s.etcd[2].Process().Cont},
		{"server 0 is stopped and etcd 0 is killed", func() { s.servers[0].Terminate() }, s.etcd[0].Kill, again(0), s.etcd[0].Start},
	} {
		since := time.Now()
		f.server()
		f.etcd()
		disturbed(f.what)
		s.t.Logf("%s for %s", f.what, time.Since(since).Round(time.Millisecond))
		f.etcdAgain()
		f.serverAgain()
	}
}

// fleet has clients that know both servers. Each holds a lock of its own, which it renews, and competes for another.
type fleet struct {
	t       *testing.T
	referee *verify.Referee
	begun   time.Time
	ops     atomic.Int64
	names   atomic.Pointer[string] // of the locks that they compete for: a prefix
	locks   []*holdfast.Client
	own     []*holdfast.Lock
}

// fleetTTL is so long that a lease ends only if it was not renewed in any of several rounds.
const fleetTTL = 5 * time.Minute

func startFleet(t *testing.T, url string, clients int) *fleet {
	t.Helper()
	f := &fleet{
		t: t, referee: verify.NewReferee(t.Context(), verify.Options{}, nil), begun: time.Now(),
		locks: make([]*holdfast.Client, clients), own: make([]*holdfast.Lock, clients),
	}
	f.add(history.Event{Kind: history.KindHeader, Header: &history.Header{Version: history.Version, SessionTTL: int64(fleetTTL)}})
	f.each(func(i int) error {
		b, err := open.URL(t.Context(), url, open.Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = b.Close() })
		if f.locks[i], err = holdfast.New(b, holdfast.Config{TTL: fleetTTL, Owner: fmt.Sprint("client ", i), Logger: slog.New(slog.DiscardHandler)}); err != nil {
			return err
		}
		f.own[i], err = f.locks[i].Acquire(t.Context(), fmt.Sprint("own/", i))
		return err
	})
	if t.Failed() {
		t.FailNow()
	}
	return f
}

// each calls do for all clients at the same time.
func (f *fleet) each(do func(i int) error) {
	var all sync.WaitGroup
	for i := range f.locks {
		all.Go(func() {
			if err := do(i); err != nil {
				f.t.Errorf("client %d: %v", i, err)
			}
		})
	}
	all.Wait()
}

// renewed returns when each client has renewed its own lock with a request that it sent after the call.
func (f *fleet) renewed(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leasetest.Patience)
	defer cancel()
	f.each(func(i int) error {
		for {
			err := f.own[i].Extend(ctx, fleetTTL)
			if !errors.Is(err, holdfast.ErrUnavailable) {
				return err
			}
		}
	})
}

func (f *fleet) now() int64 { return int64(time.Since(f.begun)) }

func (f *fleet) add(e history.Event) {
	if err := f.referee.Add(e); err != nil {
		f.t.Errorf("the recording: %v", err)
	}
}

// call records a call of a client, and its answer. The answer has the token and the deadline of the lock that it returns.
func (f *fleet) call(i int, e history.Event, do func() (*holdfast.Lock, error)) error {
	e.Kind, e.At, e.Worker, e.Op = history.KindCall, f.now(), fmt.Sprint(i, ".1"), f.ops.Add(1)
	f.add(e)
	lock, err := do()
	ret := history.Event{Kind: history.KindReturn, At: f.now(), Worker: e.Worker, Op: e.Op, Outcome: history.OK}
	switch {
	case errors.Is(err, holdfast.ErrUnavailable):
		ret.Outcome, err = history.Unknown, nil
	case err != nil:
		return err
	case lock != nil:
		ret.Token, ret.Deadline = uint64(lock.Token()), int64(lock.Deadline().Sub(f.begun))
	}
	f.add(ret)
	return err
}

// compete acquires and releases locks until stop is closed. Nine clients compete for each.
func (f *fleet) compete(ctx context.Context, stop <-chan struct{}) {
	const names = 8
	f.each(func(i int) error {
		for n := 1; ; n++ {
			select {
			case <-stop:
				return nil
			default:
			}
			e := history.Event{Lock: fmt.Sprint(*f.names.Load(), i%names), Acq: fmt.Sprint(i, "-", n), Verb: history.VerbAcquire}
			var lock *holdfast.Lock
			err := f.call(i, e, func() (*holdfast.Lock, error) {
				l, err := f.locks[i].Acquire(ctx, e.Lock)
				lock = l
				return l, err
			})
			if lock != nil {
				time.Sleep(50 * time.Millisecond) // the work: the machine has few processors for five servers
				f.add(history.Event{Kind: history.KindHeld, At: f.now(), Worker: fmt.Sprint(i, ".1"), Acq: e.Acq, Deadline: int64(lock.Deadline().Sub(f.begun))})
				e.Verb = history.VerbRelease
				err = f.call(i, e, func() (*holdfast.Lock, error) { return nil, lock.Release(ctx) })
			}
			if err != nil {
				return err
			}
		}
	})
}

// judge closes the clients and requires that the referee has found no fault.
func (f *fleet) judge(ctx context.Context) {
	f.t.Helper()
	f.each(func(i int) error {
		err := f.own[i].Release(ctx)
		return errors.Join(err, f.locks[i].Close(ctx))
	})
	f.add(history.Event{Kind: history.KindFooter, At: f.now()})
	report := f.referee.Report()
	for _, c := range report.Checks {
		f.t.Logf("%-9s %s: %s", c.Verdict, c.ID, c.Summary)
		for _, finding := range c.Details {
			f.t.Log("  ", finding.Text)
		}
	}
	if report.Verdict != verify.Pass {
		f.t.Errorf("the verdict is %q", report.Verdict)
	}
}

// Several servers on one store are the high availability. Three etcd and two servers are killed and frozen in turn under
// 72 clients that know both servers: no lock is granted twice, no lease that is renewed is lost, and a command
// continues.
func TestServersOnOneStore(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const clients, runTTL = 72, 45 * time.Second
	s := startSite(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	dir := testserver.Dir(t)
	begun, end := filepath.Join(dir, "begun"), filepath.Join(dir, "end")
	command := testserver.Start(t, testserver.Command{Path: testserver.Holdfast(t), Args: []string{
		"run", "job", "--backend", s.url, "--ttl", runTTL.String(), "--", "sh", "-c", `touch "$1"; until test -e "$2"; do sleep 0.1; done`, "sh", begun, end,
	}})
	command.Await(time.Minute, func(context.Context) error { _, err := os.Stat(begun); return err })

	f := startFleet(t, s.url, clients)
	name := func(round string) { round = "shared/" + round + "/"; f.names.Store(&round) }
	name("before")
	stop := make(chan struct{})
	var competing sync.WaitGroup
	competing.Go(func() { f.compete(ctx, stop) })
	s.eachInTurn(func(what string) {
		since := time.Now()
		name(what)
		f.renewed(ctx)
		if !strings.HasPrefix(what, "server 0 is killed") && !strings.HasPrefix(what, "server 1 is frozen") { // those that the command uses
			return
		}
		leasetest.Eventually(t, "the command renews its lock", func() bool {
			info, err := f.locks[0].Inspect(ctx, "job")
			return err == nil && len(info.Holders) == 1 && time.Now().Add(info.Holders[0].Left).After(since.Add(runTTL+time.Second)) // etcd counts seconds
		})
	})
	close(stop)
	competing.Wait()
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	command.Wanted()
	if err := command.Wait(time.Minute); err != nil {
		t.Errorf("the command: %v", err)
	}
	f.judge(ctx)
}
