package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/examples/redlock-services/internal/services"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// programEnv makes this binary the program, with the arguments of the test.
const programEnv = "HOLDFAST_EXAMPLE_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// SIGTERM ends the program, and the Redis servers that it has started.
func TestTerminated(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := testserver.Start(t, testserver.Command{Path: exe, Args: []string{"-listen", "127.0.0.1:0"}, Env: []string{programEnv + "=1"}})
	line := regexp.MustCompile(`redlock://([0-9.:,]+)`)
	p.Await(time.Minute, func(context.Context) error {
		if !strings.Contains(p.Log(), "/healthz") {
			return errors.New("it does not listen")
		}
		return nil
	})
	nodes := strings.Split(line.FindStringSubmatch(p.Log())[1], ",")
	p.Terminate()
	if err := p.Wait(time.Minute); err != nil {
		t.Errorf("%v: %s", err, p.Log())
	}
	if len(nodes) != 3 {
		t.Errorf("nodes %q", nodes)
	}
	for _, addr := range nodes {
		if conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr); err == nil {
			_ = conn.Close()
			t.Errorf("the server at %s was left behind", addr)
		}
	}
}

// The command runs as the README has it.
func TestRun(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), t.Output(), "", "", 0, 3, ""); err != nil {
		t.Error(err)
	}
}

// Four processes of two instances, on the same servers and database: each file is processed once, the IDs have no gaps, and
// each change comes once.
func TestProcesses(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(t.TempDir(), "data.db")
	store, err := services.OpenStore(t.Context(), data, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	url := "redlock://" + testserver.RedisAddrs(testserver.RedisNodes(t, 3)) + "?quarantine=off&timeout=10s"
	said := make([]string, 4)
	var wg sync.WaitGroup
	for i := range said {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), exe, "-backend", url, "-data", data, "-instances", "2")
			cmd.Env = append(os.Environ(), programEnv+"=1")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
			said[i] = string(out)
		})
	}
	wg.Wait()
	files, changes := 0, 0
	for _, line := range said {
		said := regexp.MustCompile(`processed (\d+) times; .* (\d+) changes`).FindStringSubmatch(line)
		if said == nil {
			t.Fatalf("it says %q", line)
		}
		here, _ := strconv.Atoi(said[1])
		synchronised, _ := strconv.Atoi(said[2])
		files, changes = files+here, changes+synchronised
	}
	var ids, last, results, most int
	const count = "SELECT (SELECT count(DISTINCT id) FROM invoices), (SELECT last FROM counters), (SELECT count(*) FROM results), (SELECT max(changes) FROM synced)"
	if err := store.DB().QueryRowContext(t.Context(), count).Scan(&ids, &last, &results, &most); err != nil {
		t.Fatal(err)
	}
	if files != 5 || results != 5 || ids != 40 || last != 40 || changes != 40 || most != 1 {
		t.Errorf("%d files processed and %d results, %d IDs of %d, %d changes, each %d times at most", files, results, ids, last, changes, most)
	}
}

// Health and the metrics that the document asks for are served.
func TestServe(t *testing.T) {
	t.Parallel()
	url := "redlock://" + testserver.RedisAddrs(testserver.RedisNodes(t, 3)) + "?quarantine=off&timeout=30s"
	listen, err := freeAddr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, t.Output(), url, "", 0, 2, listen) }()
	get := func(path string) string {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listen+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := http.DefaultClient.Do(req)
			if err == nil {
				body, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if err != nil || res.StatusCode != http.StatusOK {
					t.Fatalf("%s: %d %v", path, res.StatusCode, err)
				}
				return string(body)
			}
			select {
			case err := <-ended:
				t.Fatalf("it has ended: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	var health struct{ Status string }
	if err := json.Unmarshal([]byte(get("/healthz")), &health); err != nil || health.Status == "" || health.Status == "unhealthy" {
		t.Errorf("%+v, %v", health, err)
	}
	metrics := get("/metrics")
	for _, want := range []string{
		`holdfast_acquire_total{backend="redlock",mode="exclusive",result="acquired"}`, `holdfast_acquire_total{backend="redlock",mode="exclusive",result="held"}`,
		`holdfast_wait_seconds_count{backend="redlock",mode="exclusive"}`, `holdfast_hold_seconds_count`, `holdfast_lost_total`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("there is no %s", want)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
