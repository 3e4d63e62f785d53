package embedded_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/server/embedded"
)

// TestReadsWhileEtcdStops reads in the process while etcd stops. etcd closes its database at the end; a read
// that came too late would end the process.
func TestReadsWhileEtcdStops(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 6 {
		e := start(t, embedded.Config{DataDir: dir})
		client := e.Client()
		if i == 0 { // later nodes have the key in the database, and not in a buffer
			if err := put(t, e, "key", "value"); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var readers sync.WaitGroup
		for i := range 8 {
			var opts []clientv3.OpOption
			if i%2 == 0 {
				opts = append(opts, clientv3.WithSerializable()) // does not wait for the other members
			}
			readers.Go(func() {
				for {
					r, err := client.Get(ctx, "key", opts...)
					switch {
					case ctx.Err() != nil:
						t.Errorf("etcd has stopped, and is still read: %v", err)
						return
					case errors.Is(err, rpctypes.ErrStopped):
						return
					case errors.Is(err, rpctypes.ErrTimeout): // the disk takes too long
					case err != nil:
						t.Errorf("a read of a node that stops: %v", err)
						return
					case r.Count != 1:
						t.Errorf("%d keys were found; there is one", r.Count)
					}
				}
			})
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		readers.Wait()
	}
}
