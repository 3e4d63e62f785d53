package embedded_test

import (
	"context"
	"errors"
	"testing"

	"github.com/holdfast-io/holdfast/server/embedded"
)

// A cluster is formed also if the command comes before the node has begun to run, as on a busy machine.
func TestInitBeforeRun(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a")
	e, run, err := embedded.OpenHeld(f.config("a"))
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.nodes["a"] = e
	f.mu.Unlock()
	formed := make(chan error, 1)
	go func() { formed <- e.Init(t.Context()) }()
	f.insist("the record of the cluster", func(context.Context) error {
		if !e.HasRecord() {
			return errors.New("not yet")
		}
		return nil
	})
	go run()
	f.ready("a")
	if err := <-formed; err != nil {
		t.Error(err)
	}
}
