//go:build unix

package cli_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/remotelock"
)

// At the quota nothing is granted, and the status says so on every node. A lease that was renewed before is
// renewed and released all the while. After compact on every node locks are granted again.
func TestClusterQuota(t *testing.T) {
	t.Parallel()
	c := startSecureTrio(t, "--quota-mib", "4")
	c.form()
	b, err := remotelock.Open(t.Context(), c.url(0, 1, 2), remotelock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	request := func(name string) backend.AcquireRequest {
		return backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Timed: true, TTL: 10 * time.Minute, Note: strings.Repeat("x", backend.MaxNoteLen)}
	}
	kept := request("kept")
	if _, err := b.Acquire(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
	renew := backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: kept.Name, Lease: kept.Lease, TTL: 10 * time.Minute}}}
	if res, err := b.Renew(t.Context(), renew); err != nil || res.Leases[0].Err != nil {
		t.Fatalf("%+v, %v", res, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var fill sync.WaitGroup
	for i := range 32 {
		fill.Go(func() {
			name := fmt.Sprint("fill/", i)
			for ctx.Err() == nil {
				r := request(name)
				if _, err := b.Acquire(ctx, r); err != nil {
					if r := c.cluster(0, "status"); strings.Contains(r.out, "reached its quota") {
						return
					}
					continue
				}
				_ = b.Release(ctx, backend.ReleaseRequest{Name: name, Lease: r.Lease})
			}
		})
	}
	fill.Wait()
	for i := range c.nodes {
		if r := c.cluster(i, "status"); r.status != 74 || !strings.Contains(r.out, `has reached its quota; run "holdfast cluster compact"`) {
			t.Errorf("over the quota: %+v", r)
		}
	}
	if r := run(t, command(t, c.url(0), "doctor")); r.status == 0 {
		t.Errorf("doctor: %+v", r)
	}
	if _, err := b.Acquire(t.Context(), request("new")); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("over the quota: %v", err)
	}
	if res, err := b.Renew(t.Context(), renew); err != nil || res.Leases[0].Err != nil {
		t.Errorf("renewal over the quota: %+v, %v", res, err)
	}
	if r := run(t, command(t, c.as("guest", 0, 1, 2), "cluster", "compact")); r.status == 0 {
		t.Errorf("without the right: %+v", r)
	}
	if r := run(t, command(t, c.as("ops", 0, 1, 2), "cluster", "compact")); r.status != 0 {
		t.Errorf("%+v", r)
	}
	for i := range c.nodes {
		c.becomes(i, 0)
		if s := c.status(i); s.Size > s.Quota/2 {
			t.Errorf("%+v", s)
		}
	}
	await(t, time.Minute, "a lock is granted again", func() bool { _, err := b.Acquire(t.Context(), request("new")); return err == nil })
	if err := b.Release(t.Context(), backend.ReleaseRequest{Name: kept.Name, Lease: kept.Lease}); err != nil {
		t.Errorf("the lock that was held: %v", err)
	}
}
