package cli_test

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// The server is killed, and with it the writer of its file, under load and at rest: leases and places in the queue stand, and
// tokens grow.
func TestServerKilledUnderLoad(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	folder, addr := filepath.Join(testserver.Dir(t), "data"), fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	start := func() *testserver.Process {
		p := testserver.Start(t, testserver.Command{Path: binary, Args: []string{"serve", "--listen", addr, "--data-dir", folder}})
		p.Await(time.Minute, func(ctx context.Context) error { return ready(ctx, addr) })
		return p
	}
	p := start()
	backendtest.Run(t, backendtest.Harness{
		Only: []string{
			"C2/killed-under-load", "C1/leases-survive-a-restart", "C2/tokens-rise-after-a-restart", "C5/the-dead-stay-dead-after-a-restart",
			"C8/waiters-get-over-a-restart",
		},
		Open: func(t backendtest.T) backend.Backend {
			b, err := remotelock.Open(t.Context(), "holdfast://"+addr, remotelock.Config{})
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		Restart:    func(backendtest.T) { p.Kill(); p = start() },
		NoSlowDisk: "sqlitelock tests that answers rest on the disk",
	})
}

func ready(ctx context.Context, addr string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/readyz", nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		err = fmt.Errorf("readyz: %s", res.Status)
	}
	_ = res.Body.Close()
	return err
}
