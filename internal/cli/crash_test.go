package cli_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// F28: the server is killed under load on a slow disk, together with the etcd in its process.
func TestServerKilledOnASlowDisk(t *testing.T) {
	t.Parallel()
	dir, disk := testserver.Dir(t), testserver.NewSlowDisk(t)
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	start := func() *testserver.Process {
		p := testserver.Start(t, testserver.Command{
			Path: binary, Args: []string{"serve", "--listen", addr, "--data-dir", filepath.Join(dir, "data")}, Dir: dir, Disk: disk,
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
		Restart:  func(backendtest.T) { p.Kill(); p = start() },
		SlowDisk: func(backendtest.T) func() { disk.Slow(testserver.SlowSync); return disk.Fast },
		Kills:    kills,
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

// What the server answers is on its disk: each grant has a sync of the log.
func TestServerSyncsWhatItAnswers(t *testing.T) {
	t.Parallel()
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	p := testserver.Start(t, testserver.Command{Path: binary, Args: []string{"serve", "--listen", addr, "--data-dir", filepath.Join(testserver.Dir(t), "data")}})
	p.Await(time.Minute, func(ctx context.Context) error { return ready(ctx, addr) })
	syncs := func() float64 {
		page, err := io.ReadAll(ask(t, http.MethodGet, "http://"+addr+"/metrics", "").Body)
		if err != nil {
			t.Fatal(err)
		}
		return sample(t, page, "holdfast_cluster_fsync_seconds_count")
	}
	for i := range 3 {
		before := syncs()
		if res := ask(t, http.MethodPost, fmt.Sprintf("http://%s/v1/locks/n%d", addr, i), `{"ttl":"10m"}`); res.StatusCode != http.StatusOK {
			t.Fatalf("status %d", res.StatusCode)
		}
		if after := syncs(); after <= before {
			t.Errorf("%g syncs before the grant, and %g after it", before, after)
		}
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

// ask sends a request, and returns the answer with its body open.
func ask(t *testing.T, method, url, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return res
}
