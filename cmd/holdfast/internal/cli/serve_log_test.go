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
// debug shows the requests, and error does not silence the audit.
func TestServeLog(t *testing.T) {
	t.Parallel()
	for level, requests := range map[string]bool{"debug": true, "error": false} {
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
		if r := steadily(func() result {
			return run(t, command(t, "holdfast://"+addr, "break", "n", "--reason", "test", "--yes"))
		}); r.status != 0 {
			t.Errorf("break: %+v", r)
		}
		p.Terminate()
		lines := objects(t, p.Log())
		if last := lines[len(lines)-1]; last["msg"] != "stopped" {
			t.Errorf("the last line is %v", last)
		}
		seen, audited := false, false
		for _, l := range lines {
			seen = seen || l["msg"] == "request" && l["route"] == "GET /v1/locks" && l["code"] == "200"
			audited = audited || l["msg"] == "audit" && l["act"] == "break" && l["lock"] == "n" && l["reason"] == "test"
		}
		if !audited {
			t.Errorf("at %s there is no line about the break: %s", level, p.Log())
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
