package k8slock_test

import (
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// The Role that the page gives to paste is enough for the whole suite. Without one of its verbs doctor and
// the first request that needs it name it.
//
//nolint:paralleltest // two suites beside each other are too much for one API server of a busy machine
func TestLeastRights(t *testing.T) {
	block := leasetest.Rights(t, "kubernetes.md")[0]
	_, list, _ := strings.Cut(block, "verbs: [")
	list, _, _ = strings.Cut(list, "]")
	// Administrators have no share of requests, and this account has a small one, above which it gets 429.
	server := testserver.Kubernetes(t, "--enable-priority-and-fairness=false", "--max-requests-inflight=0", "--max-mutating-requests-inflight=0")
	server.Apply("default", block)
	kubeconfig := server.KubeconfigAs("system:serviceaccount:default:locks")
	as := func() backend.Backend {
		b := open(t, kubeconfig)
		return leasetest.Opened(t, b, nil)
	}
	settled := func(want bool) {
		t.Helper()
		leasetest.Eventually(t, "the API server has read the Role", func() bool {
			found, err := as().(backend.Examiner).Examine(leasetest.Within(t)) //nolint:forcetypeassert // it is one
			return err == nil && (len(found) == 0) == want
		})
	}
	settled(true)
	leasetest.Suffices(t, as())
	for verb := range strings.SplitSeq(list, ", ") {
		var others []string
		for other := range strings.SplitSeq(list, ", ") {
			if other != verb {
				others = append(others, other)
			}
		}
		server.Apply("default", strings.Replace(block, list, strings.Join(others, ", "), 1))
		settled(false)
		leasetest.Refuses(t, as(), "to "+verb+" leases")
		server.Apply("default", block)
		settled(true)
	}
	backendtest.Run(t, backendtest.Harness{
		Open:       func(t backendtest.T) backend.Backend { return open(t, kubeconfig) },
		Restart:    func(backendtest.T) { server.Restart() },
		NoSlowDisk: "TestConformance has the same server on one",
		Holders:    leasetest.Holders(16), // all are in one object, which each acquire writes
	})
}
