package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/internal/testserver"
	"github.com/holdfast-io/holdfast/server/embedded"
)

// samples returns the value of a gauge or a counter, or the count of a histogram.
func samples(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	all := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			series := []string{f.GetName()}
			for _, l := range m.GetLabel() {
				series = append(series, l.GetValue())
			}
			all[strings.Join(series, " ")] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return all
}

func register(t *testing.T, e *embedded.Etcd) *prometheus.Registry {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(e.Metrics()); err != nil {
		t.Fatal(err)
	}
	return reg
}

// A node that runs alone leads a cluster of one, and reports its data and its disk.
func TestMetricsOfANode(t *testing.T) {
	t.Parallel()
	e := start(t, embedded.Config{DataDir: testserver.Dir(t), Quota: 16 << 20})
	reg := register(t, e)
	if err := put(t, e, "a", "b"); err != nil {
		t.Fatal(err)
	}
	got := samples(t, reg)
	for name, want := range map[string]float64{
		"holdfast_cluster_waiting": 0, "holdfast_cluster_has_leader": 1, "holdfast_cluster_is_leader": 1,
		"holdfast_cluster_members voter": 1, "holdfast_cluster_members learner": 0,
		"holdfast_cluster_unreachable_members": 0, "holdfast_cluster_quorum": 1, "holdfast_cluster_database_quota_bytes": 16 << 20, "holdfast_cluster_alarms": 0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
		}
	}
	size, used := got["holdfast_cluster_database_bytes"], got["holdfast_cluster_database_in_use_bytes"]
	if used <= 0 || used > size || size > 16<<20 {
		t.Errorf("the database has %v bytes, of which %v are in use", size, used)
	}
	// The process may have more nodes, of other tests.
	if got["holdfast_cluster_fsync_seconds"] == 0 || got["holdfast_cluster_leader_changes_total"] == 0 {
		t.Errorf("no sync of the log, or no leader: %v", got)
	}
}

// A node that waits for its cluster has all the metrics, and says that it waits.
func TestMetricsOfAWaitingNode(t *testing.T) {
	t.Parallel()
	ca := testserver.Dir(t) + "/ca.pem"
	e, err := embedded.Open(embedded.Config{
		DataDir: testserver.Dir(t), Name: "a", LocalCA: ca,
		Cluster: []embedded.Peer{{Name: "a", URL: peerURL(t)}, {Name: "b", URL: peerURL(t)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	got := samples(t, register(t, e))
	for name, want := range map[string]float64{
		"holdfast_cluster_waiting": 1, "holdfast_cluster_has_leader": 0, "holdfast_cluster_is_leader": 0,
		"holdfast_cluster_members voter": 0, "holdfast_cluster_members learner": 0, "holdfast_cluster_unreachable_members": 0,
		"holdfast_cluster_quorum": 0, "holdfast_cluster_database_bytes": 0, "holdfast_cluster_database_in_use_bytes": 0,
		"holdfast_cluster_database_quota_bytes": embedded.DefaultQuota, "holdfast_cluster_alarms": 0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
		}
	}
}

func peerURL(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("http://127.0.0.1:%d", testserver.FreePort(t))
}

// The space of a peak counts for the quota until the node is started again.
func TestStartReturnsSpace(t *testing.T) {
	t.Parallel()
	cfg := embedded.Config{DataDir: testserver.Dir(t), Quota: 64 << 20}
	e, err := embedded.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	const peak = 12
	for i := range peak {
		if err := put(t, e, strconv.Itoa(i), strings.Repeat("x", 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	res, err := answered(t, func(ctx context.Context) (*clientv3.DeleteResponse, error) {
		return e.Client().Delete(ctx, "", clientv3.WithPrefix())
	})
	if err == nil {
		_, err = answered(t, func(ctx context.Context) (*clientv3.CompactResponse, error) {
			return e.Client().Compact(ctx, res.Header.Revision, clientv3.WithCompactPhysical())
		})
	}
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) { // of a repeated request: the one before worked
		t.Fatal(err)
	}
	full := samples(t, register(t, e))["holdfast_cluster_database_bytes"]
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if size := samples(t, register(t, start(t, cfg)))["holdfast_cluster_database_bytes"]; full < peak<<20 || size > full/2 {
		t.Errorf("%v bytes after the start, and %v before", size, full)
	}
}
