package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testserver"
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
	if err := run(t.Context(), t.Output(), "", 3, ""); err != nil {
		t.Error(err)
	}
}

// Health and the metrics that the document asks for are served.
func TestServe(t *testing.T) {
	t.Parallel()
	url := "redlock://" + testserver.RedisAddrs(testserver.RedisNodes(t, 3)) + "?quarantine=off"
	listen, err := freeAddr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, t.Output(), url, 2, listen) }()
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
