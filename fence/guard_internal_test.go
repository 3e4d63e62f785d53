package fence

import "testing"

// TestForgetKeepsUsers: the state that a waiting writer uses is not forgotten: otherwise two
// writers of one resource would not know of each other.
func TestForgetKeepsUsers(t *testing.T) {
	t.Parallel()
	g := NewGuard()
	n, err := g.known.use("a") // a writer that waits for its turn
	if err != nil {
		t.Fatal(err)
	}
	g.Forget("a")
	if g.known.find("a") != n {
		t.Fatal("another writer would get a record of its own")
	}
	g.known.unuse("a", n)
	if g.known.unuse("a", n); g.known.find("a") != nil {
		t.Error("it is kept after the last has left")
	}
}
