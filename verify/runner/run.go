//go:build unix

package runner

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/open"
	"github.com/holdfast-io/holdfast/verify/history"
)

// rotateAfter is after how many calls a lock gets another name: the cost of the referee's
// search for an order of the calls grows faster than their number.
const rotateAfter = 200

// settleTime is how long, beyond the life of a lease, the workers continue without faults: the
// time that a hand-over may take, the time to recover from a fault, and enough time to see that
// a worker waits without success.
const settleTime = 8 * time.Second

// run is a run in progress.
type run struct {
	cfg       Config
	warnings  *warningCollector
	caps      backend.Capabilities
	ttl       time.Duration
	measure   measure
	able      abilities
	prefix    string
	direct    backend.Backend // without a relay
	out       sync.Mutex      // guards Record
	took      time.Duration   // how long a lock takes when nothing else happens
	resource  *registers
	relays    [][]*chaos.Proxy // of each worker, one for each endpoint
	urls      []string         // of each worker, over its relays
	deadLocks *deadLockProbe
	notTested []string

	mu      sync.Mutex
	workers []*workerHandle
	lives   []int
	busy    []bool // a worker has a fault
	gens    []int
	counts  map[string]int   // calls of each name, without those of the load
	used    map[string]int64 // when each name of the load was used last
	pruned  int64            // when old ones were dropped
	failure error
}

// Run runs the workers and the faults, and writes the history. The history is complete when the
// error is nil.
//
// Errors: *backend.InvalidError for a field of cfg that is out of bounds; those of opening the
// backend; workers that could not start; ctx's cause, after everything was released as far as
// that was possible.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.check(); err != nil {
		return err
	}
	if _, err := readClock(); err != nil {
		return err
	}
	seen := &warningCollector{}
	b, err := openAgain(ctx, cfg.URL, open.Options{Logger: slog.New(seen)})
	if err != nil {
		return err
	}
	if cfg.breaks != nil {
		b = cfg.breaks(b)
	}
	r := &run{
		cfg: cfg, warnings: seen, caps: b.Capabilities(), direct: b, resource: newRegisters(),
		measure: cfg.Profile.measure(), counts: make(map[string]int), used: make(map[string]int64), gens: make([]int, len(slots())),
		prefix: "holdfast-verify/" + strings.ToLower(rand.Text()),
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if cfg.found != nil {
		go func() {
			select {
			case <-cfg.found:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	err = r.execute(ctx)
	if cfg.isFound() {
		err = nil // whatever failed because the run was ended
	}
	for _, relays := range r.relays {
		for _, p := range relays {
			err = errors.Join(err, p.Close())
		}
	}
	return errors.Join(err, b.Close())
}

// openAgain opens the backend, also if the machine stands still meanwhile.
func openAgain(ctx context.Context, url string, o open.Options) (backend.Backend, error) {
	ctx, cancel := context.WithTimeout(ctx, patientOpen)
	defer cancel()
	var b backend.Backend
	err := again(ctx, standstill, func() error {
		var err error
		b, err = open.URL(ctx, url, o)
		return err
	})
	return b, err
}

func (r *run) execute(ctx context.Context) (err error) {
	if r.ttl, err = r.cfg.ttl(r.caps); err != nil {
		return err
	}
	if err := r.reach(ctx); err != nil {
		return err
	}
	r.warnings.ask(ctx, r.direct)
	if err := r.warm(ctx); err != nil {
		return err
	}
	if err := r.relay(ctx); err != nil {
		return err
	}
	n := r.measure.workers
	r.workers, r.lives, r.busy = make([]*workerHandle, n), make([]int, n), make([]bool, n)
	if err := r.head(); err != nil {
		return err
	}
	defer r.killAll()
	if err := r.probe(ctx); err != nil {
		return err
	}
	if r.deadLocks, err = r.newDeadLockProbe(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.deadLocks.end(ctx)) }()
	if err := r.startAll(ctx); err != nil {
		return err
	}
	r.cfg.Log(fmt.Sprintf("%d workers on %s, TTL %s, seed %d: faults for %s", n, r.caps.Name, r.ttl, r.cfg.Seed, r.cfg.For))
	r.runNemesis(ctx)
	if r.cfg.isFound() {
		return r.failed()
	}
	r.tell(history.Event{Kind: history.KindQuiet})
	retry.Pause(ctx, r.slack()+settleTime)
	if r.cfg.isFound() {
		return r.failed()
	}
	r.cfg.Log("all is healed; the workers end")
	if err := r.deadLocks.end(ctx); err != nil {
		return err
	}
	r.stopAll()
	r.sweep(context.WithoutCancel(ctx))
	if err := r.failed(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("verify: ended before its time: %w", context.Cause(ctx))
	}
	return r.write(history.Event{Kind: history.KindFooter, At: now()})
}

// slack returns how long a lease can outlive its holder.
func (r *run) slack() time.Duration { return r.ttl + r.caps.ExpiryLag }

// reach checks that the backend answers, and that no other client uses the prefix.
func (r *run) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patientOpen)
	defer cancel()
	var page backend.ListPage
	err := again(ctx, standstill, func() error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		var err error
		page, err = r.direct.List(ctx, backend.ListRequest{Prefix: r.prefix, Limit: 1})
		return err
	})
	switch {
	case errors.Is(err, backend.ErrUnsupported):
		return nil
	case err != nil:
		return fmt.Errorf("verify: examine the backend: %w", err)
	case len(page.Locks) > 0:
		return fmt.Errorf("verify: the backend has locks under %q already", r.prefix)
	}
	return nil
}

// relay puts relays before the backend, if that is possible.
func (r *run) relay(ctx context.Context) error {
	r.able.processes = !inProcess(r.cfg.URL)
	r.able.link = !r.able.processes
	r.able.tied = r.caps.Tied
	_, r.able.relay = parseEndpoints(r.cfg.URL)
	r.notTested = r.untested()
	for range r.measure.workers {
		e, ok := parseEndpoints(r.cfg.URL)
		if !ok {
			r.urls = append(r.urls, r.cfg.URL)
			continue
		}
		var hosts []string
		var relays []*chaos.Proxy
		for _, host := range e.hosts {
			p, err := chaos.NewProxy(context.WithoutCancel(ctx), host)
			if err != nil {
				return fmt.Errorf("verify: put a relay before the backend: %w", err)
			}
			relays = append(relays, p)
			hosts = append(hosts, p.Addr())
		}
		r.relays = append(r.relays, relays)
		r.urls = append(r.urls, e.with(hosts))
	}
	return nil
}

// untested returns what a run on this backend leaves out.
func (r *run) untested() []string {
	out := []string{
		"restarts, lost data, fail-over, slow and full disks of the backend's servers: they are not ours to hurt", "clocks that jump",
		"workers on several machines", "the order of the queue: how fair it was is measured, not judged",
	}
	if !r.able.relay {
		scheme, _, _ := strings.Cut(r.cfg.URL, ":")
		switch {
		case r.able.link:
			out = append(out, "stopped and killed processes, and a real network: the backend lives in one process")
		case strings.HasSuffix(scheme, "s"):
			out = append(out, "faults of the network: no relay can stand in a TLS connection")
		default:
			out = append(out, "faults of the network: there is none between the workers and the backend")
		}
	}
	if _, ok := r.direct.(backend.Examiner); !ok && r.able.relay {
		out = append(out, "the settings of the store behind the server: they cannot be seen from here")
	}
	if r.caps.Tied && r.able.relay {
		out = append(out, "connections that break: the leases of this backend end with them, before their time")
	}
	switch r.cfg.Profile {
	case Gentle:
		out = append(out, "faults that are longer than the TTL: the profile is gentle")
	case Jepsen:
		out = append(out, "all but an exclusive lock whose holders are stopped: the profile is jepsen")
	case Standard, Torture:
	}
	for _, c := range []struct {
		has  bool
		what string
	}{{r.caps.Shared, "readers and writers"}, {r.caps.Permits, "semaphores"}, {r.caps.Timed, "timed leases"}} {
		if !c.has {
			out = append(out, c.what+": the backend does not have them")
		}
	}
	return out
}

func (r *run) head() error {
	warnings := r.warnings.all(r.caps)
	for _, text := range warnings {
		r.cfg.Log("warning: " + text)
	}
	return r.write(history.Event{Kind: history.KindHeader, At: now(), Header: &history.Header{
		Version: history.Version, Seed: r.cfg.Seed, Profile: string(r.cfg.Profile), Backend: r.caps.Name, Prefix: r.prefix + "/",
		Workers: r.measure.workers, SessionTTL: int64(r.ttl), ExpiryLag: int64(r.caps.ExpiryLag), FIFO: r.caps.FIFO, Tied: r.caps.Tied,
		Started: time.Now().UTC().Format(time.RFC3339), Replay: r.cfg.Replay, NotTested: r.notTested,
		Warnings: warnings,
	}})
}

func (r *run) write(e history.Event) error {
	r.out.Lock()
	defer r.out.Unlock()
	return r.cfg.Record(e)
}

// record records an event; a failure ends the run.
func (r *run) record(e history.Event) {
	if err := r.write(e); err != nil {
		r.fail(err)
	}
}

// tell records an event at the current time.
func (r *run) tell(e history.Event) {
	e.At = now()
	r.record(e)
}

// kill kills a worker, and records that with the time before the signal. The record comes last: a
// referee that learns of a death waits for no more events of that worker, and some that it wrote
// before it died are still in its pipe.
func (r *run) kill(p *workerHandle) {
	at := now()
	p.kill()
	r.record(history.Event{Kind: history.KindKill, At: at, Worker: p.id})
}

func (r *run) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failure = errors.Join(r.failure, err)
}

func (r *run) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure
}

// hear handles an event of a worker.
func (r *run) hear(p *workerHandle, e history.Event) {
	switch e.Kind { //nolint:exhaustive // the others are only recorded
	case history.KindRead, history.KindWrite:
		p.send(r.resource.serve(e, r.record))
		return
	case history.KindCall:
		r.count(e.Lock, e.At)
	}
	r.deadLocks.observe(e)
	r.record(e)
}

// count counts a call, and renames a lock that had many.
func (r *run) count(lock string, at int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if strings.HasPrefix(lock, r.prefix+loadNames) {
		if r.used[lock] = at; at > r.pruned+longPeriod {
			r.pruned = at
			maps.DeleteFunc(r.used, func(_ string, last int64) bool { return last < at-longPeriod })
		}
		return
	}
	if r.counts[lock]++; r.counts[lock] != rotateAfter {
		return
	}
	for i, s := range slots() {
		if lock == fmt.Sprintf("%s/%s.%d", r.prefix, s.name, r.gens[i]) {
			r.gens[i]++
			for _, p := range r.workers {
				p.send(order{Gens: slices.Clone(r.gens)})
			}
		}
	}
}

// start starts the next life of a worker.
func (r *run) start(ctx context.Context, n int) error {
	r.mu.Lock()
	r.lives[n]++
	j := job{
		Worker: fmt.Sprintf("%d.%d", n+1, r.lives[n]), URL: r.urls[n], Prefix: r.prefix, TTL: r.ttl,
		Seed: r.cfg.Seed + uint64(n+1)<<32 + uint64(r.lives[n])<<48, Tasks: r.measure.tasksOf(n), //nolint:gosec // both are small and above 0
		Pause:    time.Second * time.Duration(r.measure.workers*r.measure.tasks) / time.Duration(r.measure.deepRate()),
		Patience: r.patience(), Gens: slices.Clone(r.gens),
		Jepsen: r.cfg.Profile == Jepsen, Load: r.load(n),
	}
	r.mu.Unlock()
	var p *workerHandle
	hear := func(e history.Event) { r.hear(p, e) }
	if r.able.link {
		ready := make(chan struct{})
		p = startInside(context.WithoutCancel(ctx), r.direct, j, func(e history.Event) { <-ready; hear(e) })
		close(ready)
	} else {
		ready := make(chan struct{})
		var err error
		p, err = startProcess(r.cfg.Worker, j, func(e history.Event) { <-ready; hear(e) })
		if err != nil {
			return err
		}
		close(ready)
	}
	r.mu.Lock()
	r.workers[n] = p
	gens := slices.Clone(r.gens)
	r.mu.Unlock()
	p.send(order{Gens: gens})
	return nil
}

func (r *run) startAll(ctx context.Context) error {
	for n := range r.workers {
		if err := r.start(ctx, n); err != nil {
			return err
		}
	}
	for _, p := range r.current() {
		select {
		case <-p.begun:
		case <-p.done:
			return errors.Join(fmt.Errorf("verify: worker %s did not begin", p.id), p.err)
		case <-time.After(30 * time.Second):
			return fmt.Errorf("verify: worker %s did not begin within 30s", p.id)
		case <-ctx.Done():
			return fmt.Errorf("verify: %w", context.Cause(ctx))
		}
	}
	return nil
}

func (r *run) current() []*workerHandle {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.workers), func(p *workerHandle) bool { return p == nil })
}

// stopAll lets every worker end in order. A worker that does not end is killed, and that is a
// failure of the run.
func (r *run) stopAll() {
	workers := r.current()
	for _, p := range workers {
		p.send(order{Stop: true})
	}
	end := time.After(4*r.slack() + 20*time.Second)
	for _, p := range workers {
		select {
		case <-p.done:
			if p.err != nil {
				r.fail(p.err)
			}
		case <-end:
			r.fail(fmt.Errorf("verify: worker %s did not end when it was told to", p.id))
			r.kill(p)
		}
	}
}

// killAll kills all workers.
func (r *run) killAll() {
	var work sync.WaitGroup
	for _, p := range r.current() {
		work.Go(p.kill)
	}
	work.Wait()
}
