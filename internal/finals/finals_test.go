package finals_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/finals"
)

func TestLeases(t *testing.T) {
	t.Parallel()
	var f finals.Leases
	f.Add(backend.Loss{Session: "a", Lease: "1"}, backend.Loss{Session: "b", Lease: "2"}, backend.Loss{Session: "b", Lease: "3"})
	if !f.Has("a", "1") || !f.Has("b", "2") || !f.Has("b", "3") {
		t.Error("a loss is not known")
	}
	if f.Has("a", "2") || f.Has("b", "1") || f.Has("", "1") {
		t.Error("a lease of another session counts as lost")
	}
	f.Drop("b")
	if f.Has("b", "2") || !f.Has("a", "1") {
		t.Error("Drop forgets its session, and no other")
	}
	f.Add(backend.Loss{Session: "a"})
	if f.Has("a", "1") {
		t.Error("a session that was lost is remembered")
	}
}
