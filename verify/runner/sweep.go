//go:build unix

package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/verify/history"
)

// The first and the last worker are in this process and have no faults.
const (
	opener  = "first.1"
	sweeper = "last.1"
)

// controlClient is a client without faults.
type controlClient struct {
	*run
	id    string
	locks *holdfast.Client
	ops   atomic.Int64
}

func (r *run) newControlClient(id string) (*controlClient, error) {
	locks, err := holdfast.New(r.direct, holdfast.Config{TTL: r.ttl, Owner: "verify " + id, Timeout: r.ttl})
	return &controlClient{run: r, id: id, locks: locks}, err
}

// call records a call and its return.
func (c *controlClient) call(verb history.Verb, lock, acq string, f func() (history.Event, error)) error {
	op := c.ops.Add(1)
	c.tell(history.Event{Kind: history.KindCall, Worker: c.id, Op: op, Verb: verb, Lock: lock, Acq: acq})
	begun := now()
	ret, err := f()
	ret.Kind, ret.Worker, ret.Op, ret.Outcome = history.KindReturn, c.id, op, outcome(err)
	if err != nil {
		ret.Text = err.Error()
	}
	c.tell(ret)
	if took := now() - begun; verb != history.VerbAcquire && took >= leastSilence(c.ttl) { // see worker.tellSilence
		c.tell(history.Event{Kind: history.KindSilence, Worker: c.id, Took: took})
	}
	return err
}

// take acquires a lock. The returned function releases it; it is nil when there is nothing to
// release.
func (c *controlClient) take(ctx context.Context, verb history.Verb, name string) (func(), error) {
	acq := c.id + "-" + strconv.FormatInt(c.ops.Add(1), 10)
	do := c.locks.Acquire
	if verb == history.VerbTry {
		do = c.locks.TryAcquire
	}
	var lock *holdfast.Lock
	err := c.call(verb, name, acq, func() (history.Event, error) {
		var err error
		if lock, err = do(ctx, name); err != nil {
			return history.Event{}, err
		}
		return history.Event{Token: uint64(lock.Token()), Deadline: clockTime(lock.Deadline())}, nil
	})
	if err != nil {
		return nil, err
	}
	return func() {
		_ = c.call(history.VerbRelease, name, acq, func() (history.Event, error) { return history.Event{}, lock.Release(ctx) })
	}, nil
}

func (c *controlClient) end(ctx context.Context) error {
	closing := now()
	err := closeIn(ctx, c.locks, c.slack())
	c.record(history.Event{Kind: history.KindEnd, At: closing, Worker: c.id})
	return err
}

// patientStart is how long a backend may take to grant its first lock: one that has just been
// started may refuse as long as earlier leases may be held.
const patientStart = 2 * time.Minute

// warm acquires a first lock, which is not in the history, so that the history is not about a
// backend that is not ready.
func (r *run) warm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patientStart)
	defer cancel()
	locks, err := holdfast.New(r.direct, holdfast.Config{TTL: r.ttl, Owner: "verify", Timeout: r.ttl})
	if err != nil {
		return err
	}
	patience := time.AfterFunc(3*time.Second, func() {
		r.cfg.Log(fmt.Sprintf("the backend grants nothing yet; waiting for up to %s", patientStart))
	})
	defer patience.Stop()
	nothing := func(context.Context, *holdfast.Lock) error { return nil }
	lock := func() error { return locks.Do(ctx, r.prefix+"/ready", nothing) }
	err = again(ctx, 0, func() error {
		if err := lock(); err != nil {
			return err
		}
		return r.measureSpeed(lock)
	})
	if err = errors.Join(err, closeIn(ctx, locks, r.slack())); err != nil {
		return fmt.Errorf("verify: the backend does not grant a first lock: %w", err)
	}
	return nil
}

// patientOpen is how long a backend may take to answer at all.
const patientOpen = 30 * time.Second

// standstill is how long an attempt takes at least when the machine stands still. A backend that is
// not there refuses sooner.
const standstill = time.Second

// again calls f until it succeeds, or fails for another reason than that the machine or the backend
// stood still, or ctx ends. An attempt that fails in less than least is the last one.
func again(ctx context.Context, least time.Duration, f func() error) error {
	for {
		begun := time.Now()
		err := f()
		op, ok := errors.AsType[*holdfast.OpError](err)
		passing := errors.Is(err, holdfast.ErrUnavailable) || errors.Is(err, holdfast.ErrLost) || ok && op.MayHold
		if !passing || errors.Is(err, holdfast.ErrRefused) || time.Since(begun) < least || !retry.Pause(ctx, 50*time.Millisecond) {
			return err
		}
	}
}

// measureSpeed decides how large the load is: a load that waits for a backend most of the
// time shows no more than a smaller one.
func (r *run) measureSpeed(lock func() error) error {
	const times = 5
	begun := time.Now()
	for range times {
		if err := lock(); err != nil {
			return err
		}
	}
	r.took = max(1, time.Since(begun)/times)
	return nil
}

// scale returns the part of the load that the backend can serve: 1 is all.
func (r *run) scale() float64 {
	const quick = 5 * time.Millisecond
	return min(1, float64(quick)/float64(r.took))
}

// probe acquires two locks whose names differ only in case, which are different locks, at the
// same time. The referee judges the answers of the backend.
func (r *run) probe(ctx context.Context) error {
	c, err := r.newControlClient(opener)
	if err != nil {
		return err
	}
	var give []func()
	for _, name := range []string{"/probe", "/Probe"} {
		if f, err := c.take(ctx, history.VerbTry, r.prefix+name); err == nil {
			give = append(give, f)
		}
	}
	for _, f := range give {
		f()
	}
	return c.end(ctx)
}

// sweep acquires every lock once more, which must be possible now, and then checks what is
// left.
func (r *run) sweep(ctx context.Context) {
	if err := r.takeAll(ctx); err != nil {
		r.fail(fmt.Errorf("verify: the last round: %w", err))
		return
	}
	r.checkReleased(ctx)
}

func (r *run) takeAll(ctx context.Context) error {
	c, err := r.newControlClient(sweeper)
	if err != nil {
		return err
	}
	r.mu.Lock()
	names := r.swept()
	r.mu.Unlock()
	tasks := make(chan string)
	var work sync.WaitGroup
	limited, cancel := context.WithTimeout(ctx, r.patience())
	defer cancel()
	for range 16 {
		work.Go(func() {
			for name := range tasks {
				if give, err := c.take(limited, history.VerbAcquire, name); err == nil {
					give()
				}
			}
		})
	}
	for _, name := range names {
		tasks <- name
	}
	close(tasks)
	work.Wait()
	return c.end(ctx)
}

// maxSwept bounds how many locks of the load are acquired once more.
const maxSwept = 300

// swept returns the names that are acquired once more: all, but of the load's only those that
// were used last. r.mu is locked.
func (r *run) swept() []string {
	load := slices.SortedFunc(maps.Keys(r.used), func(a, b string) int { return cmp.Compare(r.used[b], r.used[a]) })
	names := slices.Collect(maps.Keys(r.counts))
	names = append(names, load[:min(len(load), maxSwept)]...)
	slices.Sort(names)
	return names
}

// checkReleased waits until the backend has nothing under the prefix, and reports what it still has when
// that should have ended.
func (r *run) checkReleased(ctx context.Context) {
	end := time.Now().Add(r.slack() + r.places() + 5*time.Second)
	for {
		left, err := r.list(ctx)
		switch {
		case errors.Is(err, backend.ErrUnsupported):
			r.tell(history.Event{Kind: history.KindNote, Text: "the backend cannot list its locks: what is left was not looked for"})
			return
		case err != nil && time.Now().After(end):
			r.fail(fmt.Errorf("verify: list the leftovers: %w", err))
			return
		case err == nil && len(left) == 0:
			return
		case err == nil && time.Now().After(end):
			for _, l := range left {
				r.tell(history.Event{Kind: history.KindLeft, Lock: l.Name, Text: describeLeft(l)})
			}
			return
		}
		retry.Pause(ctx, 100*time.Millisecond)
	}
}

// describeLeft says whose leases a lock still has.
func describeLeft(l backend.LockInfo) string {
	text := []string{fmt.Sprintf("%d holders, %d waiters", len(l.Holders), len(l.Waiters))}
	for _, h := range l.Holders {
		text = append(text, fmt.Sprintf("held by %q since %s, for another %s", h.Owner, h.Since.UTC().Format(time.RFC3339Nano), h.Left))
	}
	for _, w := range l.Waiters {
		text = append(text, fmt.Sprintf("%q has waited since %s", w.Owner, w.Since.UTC().Format(time.RFC3339Nano)))
	}
	return strings.Join(text, "; ")
}

// placeTTL is server.Config.PlaceTTL: how long a place in the queue may outlive its request.
const placeTTL = 15 * time.Second

// places returns how long the backend may keep a place in the queue that it could not delete when
// its request ended.
func (r *run) places() time.Duration {
	if r.caps.Name == "holdfast" {
		return placeTTL
	}
	return 0
}

func (r *run) list(ctx context.Context) ([]backend.LockInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	page, err := r.direct.List(ctx, backend.ListRequest{Prefix: r.prefix + "/"})
	return page.Locks, err
}
