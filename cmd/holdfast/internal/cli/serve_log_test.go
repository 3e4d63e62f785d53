//go:build unix

package cli_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// With --log-format json every line is an object, from the first to the reason of the end; --log-level
// debug shows the requests.
func TestServeLog(t *testing.T) {
	t.Parallel()
	for level, requests := range map[string]bool{"debug": true, "warn": false} {
		addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
		data := filepath.Join(testserver.Dir(t), "data")
		args := []string{"serve", "--listen", addr, "--data-dir", data, "--log-format", "json", "--log-level", level}
		p := testserver.Start(t, testserver.Command{Path: binary, Args: args})
		p.Await(time.Minute, func(ctx context.Context) error {
			return exec.CommandContext(ctx, binary, "ls", "--backend", "holdfast://"+addr).Run()
		})
		second := run(t, command(t, "", args...)) // the folder is in use
		if lines := objects(t, second.stderr); second.status != 1 || len(lines) != 1 || lines[0]["level"] != "ERROR" || lines[0]["status"] != 1.0 {
			t.Errorf("a server that cannot start: %+v", second)
		}
		p.Signal(syscall.SIGHUP) // does nothing
		if r := run(t, command(t, "holdfast://"+addr, "ls")); r.status != 0 {
			t.Errorf("after SIGHUP: %+v", r)
		}
		p.Terminate()
		lines := objects(t, p.Log())
		if last := lines[len(lines)-1]; last["msg"] != "stopped" {
			t.Errorf("the last line is %v", last)
		}
		seen := false
		for _, l := range lines {
			seen = seen || l["msg"] == "request" && l["route"] == "GET /v1/locks" && l["code"] == "200"
		}
		if seen != requests {
			t.Errorf("at %s a request is in the log: %v\n%s", level, seen, p.Log())
		}
	}
	for _, flag := range []string{"--log-format=xml", "--log-level=trace"} {
		if r := run(t, command(t, "", "serve", flag)); r.status != 64 || !strings.Contains(r.stderr, "must be") {
			t.Errorf("%s: %+v", flag, r)
		}
	}
}

// A second signal ends a server that still serves because of --drain-delay.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	cmd := command(t, "", "serve", "--listen", "127.0.0.1:0", "--data-dir", filepath.Join(testserver.Dir(t), "data"), "--drain-delay", "1h")
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	lines := bufio.NewScanner(log)
	for _, told := range []string{"the page is", "stopping"} {
		for lines.Scan() && !strings.Contains(lines.Text(), told) {
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); !kill.Stop() {
		t.Errorf("it did not end: %v", err)
	}
}

// The server warns at its start of what the doctor finds in its store.
func TestServeExaminesItsStore(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	primary := testserver.Redis(t)
	host, port, _ := strings.Cut(primary.Addr(), ":")
	testserver.Redis(t, "--replicaof", host+" "+port)
	primary.Do("WAIT", "1", "20000")
	p := testserver.Start(t, testserver.Command{Path: binary, Args: []string{
		"serve", "--listen", "127.0.0.1:0", "--backend", "redis://" + primary.Addr() + "?quarantine=off",
	}})
	p.Await(time.Minute, func(context.Context) error {
		if !strings.Contains(p.Log(), "level=WARN") || !strings.Contains(p.Log(), "1 replicas follow") {
			return errors.New("it has not warned")
		}
		return nil
	})
}

// No flag about the log silences the audit, also without a policy.
func TestAuditIsNotSilenced(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--quiet", "--log-level=error"} {
		addr, url := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t)), sqliteURL(t)
		p := testserver.Start(t, testserver.Command{Path: binary, Args: []string{"serve", "--listen", addr, "--backend", url, flag}})
		p.Await(time.Minute, func(ctx context.Context) error {
			return exec.CommandContext(ctx, binary, "ls", "--backend", "holdfast://"+addr).Run()
		})
		acquire := func() result {
			return run(t, command(t, url, "acquire", "n", "--ttl", "1h", "--lease", "lease-of-the-test-0001"))
		}
		if r := steadily(acquire); r.status != 0 {
			t.Fatalf("%+v", r)
		}
		breaks := func() result {
			return run(t, command(t, "holdfast://"+addr, "break", "n", "--reason", "test", "--yes"))
		}
		if r := steadily(breaks); r.status != 0 {
			t.Errorf("%+v", r)
		}
		p.Await(time.Minute, func(context.Context) error {
			for line := range strings.Lines(p.Log()) {
				var o map[string]any
				if json.Unmarshal([]byte(line), &o) == nil && o["msg"] == "audit" && o["act"] == "break" && o["lock"] == "n" && o["reason"] == "test" {
					return nil
				}
			}
			return fmt.Errorf("with %s there is no line about the break: %s", flag, p.Log())
		})
	}
}

func objects(t *testing.T, text string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(text) {
		var o map[string]any
		if err := json.Unmarshal([]byte(line), &o); err != nil || o["time"] == nil || o["level"] == nil || o["msg"] == nil {
			t.Errorf("%q is no object of a log: %v", line, err)
		}
		all = append(all, o)
	}
	return all
}
