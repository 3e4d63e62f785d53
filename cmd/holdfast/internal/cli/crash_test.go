package cli_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// The server is killed under load, and with it the writer of its file: leases stand, and tokens grow.
func TestServerKilledUnderLoad(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	dir := testserver.Dir(t)
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	start := func() *testserver.Process {
		p := testserver.Start(t, testserver.Command{
			Path: binary, Args: []string{"serve", "--listen", addr, "--data-dir", filepath.Join(dir, "data")}, Dir: dir,
		})
		p.Await(time.Minute, func(ctx context.Context) error { return ready(ctx, addr) })
		return p
	}
	p := start()
	kills := 5
	if n, err := strconv.Atoi(os.Getenv("HOLDFAST_KILLS")); err == nil {
		kills = n
	}
	cases := backendtest.Cases()
	c := cases[slices.IndexFunc(cases, func(c backendtest.Case) bool { return c.Name == "killed-under-load" })]
	r := c.Run(t.Context(), backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := remotelock.Open(t.Context(), "holdfast://"+addr, remotelock.Config{})
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		Restart:    func(backendtest.T) { p.Kill(); p = start() },
		NoSlowDisk: "sqlitelock tests that answers rest on the disk",
		Kills:      kills,
	})
	if r.Skipped != "" {
		t.Errorf("it was not run: %s", r.Skipped)
	}
	for _, failure := range r.Failures {
		t.Error(failure)
	}
	for _, line := range r.Log {
		t.Log(line)
	}
}

// sample returns the value of a metric on a page of metrics; of several with the name, of the first.
func sample(t *testing.T, page []byte, name string) float64 {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + name + `(?:\{.*\})? (\S+)$`).FindSubmatch(page)
	if found == nil {
		t.Fatalf("there is no %s", name)
	}
	v, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
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
