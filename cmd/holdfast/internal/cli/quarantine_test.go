package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/open"
)

// freshStores are stores that were just started, with the reason that they give.
func freshStores(t *testing.T) map[string]struct{ url, reason string } {
	t.Helper()
	const three = 3
	return map[string]struct{ url, reason string }{
		"redis":   {"redis://" + testserver.Redis(t).Addr() + "?quarantine=1h", "the server is new or lost its data"},
		"redlock": {"redlock://" + testserver.RedisAddrs(testserver.RedisNodes(t, three)) + "?max_ttl=1h&timeout=30s", "of the 3 nodes are new or lost data"},
	}
}

// A store that was just started grants nothing for a while. Every surface says so, with the reason, the
// end and what turns it off, and none says that the lock is held.
func TestQuarantine(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for name, store := range freshStores(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Run("commands", func(t *testing.T) { t.Parallel(); quarantineOfCommands(t, store.url, store.reason) })
			t.Run("package", func(t *testing.T) { t.Parallel(); quarantineOfThePackage(t, name, store.url, store.reason) })
			t.Run("server", func(t *testing.T) { t.Parallel(); quarantineOfTheServer(t, name, store.url, store.reason) })
		})
	}
}

func quarantineOfCommands(t *testing.T, url, reason string) {
	t.Helper()
	// They wait for as long as a store may need to answer.
	var all sync.WaitGroup
	for _, args := range [][]string{
		{"run", "--wait", "20s", "job", "--", "true"},
		{"run", "--try", "job", "--", "true"},
		{"acquire", "--wait", "20s", "job"},
		{"acquire", "--try", "job"},
		{"doctor"},
		{"bench", "--rounds", "1"},
	} {
		all.Go(func() {
			got := run(t, command(t, url, args...))
			if got.status != 74 || strings.Contains(got.stderr, "is held") {
				t.Errorf("%v: %+v, want status 74", args, got)
			}
			for _, want := range []string{"in quarantine for another ", reason, "quarantine=off"} {
				if !strings.Contains(got.stderr, want) {
					t.Errorf("%v: it does not say %q: %s", args, want, got.stderr)
				}
			}
		})
	}
	all.Wait()
}

// quarantineOfThePackage checks the error, the hook and the log of a program.
func quarantineOfThePackage(t *testing.T, name, url, reason string) {
	t.Helper()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	b, err := open.URL(t.Context(), url, open.Options{Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	c, err := holdfast.New(b, holdfast.Config{Logger: logger, Hooks: &holdfast.Hooks{
		Failed: func(_ context.Context, e holdfast.FailedEvent) { failed <- e.Err },
	}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Acquire(t.Context(), "job", holdfast.Wait(20*time.Second))
	for surface, err := range map[string]error{"Acquire": err, "the hook": <-failed} {
		q, ok := errors.AsType[*holdfast.QuarantineError](err)
		if !ok || !errors.Is(err, holdfast.ErrUnavailable) || errors.Is(err, holdfast.ErrHeld) {
			t.Errorf("%s: %v", surface, err)
			continue
		}
		if q.Backend != name || !strings.Contains(q.Reason, reason) || q.Left < 5*time.Minute || time.Until(q.Until) < 5*time.Minute || q.Parameter != "quarantine=off" {
			t.Errorf("%s: %+v", surface, q)
		}
	}
	if err := errors.Join(c.Close(t.Context()), b.Close()); err != nil {
		t.Error(err)
	}
	lines := 0 // a slow call may be logged too
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "level=WARN") && strings.Contains(line, reason) {
			lines++
		}
	}
	if lines != 1 || !strings.Contains(log.String(), reason) || !strings.Contains(log.String(), "until=") {
		t.Errorf("%d warnings: %s", lines, log.String())
	}
}

// quarantineOfTheServer checks the answers of "holdfast serve", and a command behind it.
func quarantineOfTheServer(t *testing.T, name, url, reason string) {
	t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	p := testserver.Start(t, testserver.Command{Path: binary, Args: []string{"serve", "--listen", addr, "--backend", url}})
	p.Await(30*time.Second, func(ctx context.Context) error {
		got, err := fetch(ctx, http.MethodGet, "http://"+addr+"/healthz", "")
		if err == nil {
			err = got.Body.Close()
		}
		return err
	})
	for _, ask := range []struct{ method, path, body string }{
		{http.MethodPost, "/v1/locks/job", `{"ttl":"10s"}`},
		{http.MethodPost, "/v1/locks/job", `{"ttl":"10s","wait":"2s"}`},
		{http.MethodGet, "/readyz", ""},
	} {
		got, err := fetch(t.Context(), ask.method, "http://"+addr+ask.path, ask.body)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(got.Body)
		_ = got.Body.Close()
		if err != nil || got.StatusCode != http.StatusServiceUnavailable || got.Header.Get("Retry-After") == "" ||
			!strings.Contains(string(body), "for another ") || !strings.Contains(string(body), reason) || !strings.Contains(string(body), "quarantine=off") || strings.Contains(string(body), "is held") {
			t.Errorf("%s %s: %s, Retry-After %q: %s, %v", ask.method, ask.path, got.Status, got.Header.Get("Retry-After"), body, err)
		}
	}
	got := run(t, command(t, "holdfast://"+addr, "run", "--wait", "10s", "job", "--", "true"))
	if got.status != 74 || !strings.Contains(got.stderr, name+" is in quarantine") || !strings.Contains(got.stderr, reason) {
		t.Errorf("behind the server: %+v", got)
	}
}

func fetch(ctx context.Context, method, url, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(req)
}

// A waiter learns of the quarantine while it waits.
func TestQuarantineIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	for _, store := range freshStores(t) {
		saidAtOnce(t, store.url)
	}
}

func saidAtOnce(t *testing.T, url string) {
	t.Helper()
	for _, args := range [][]string{{"run", "job", "--", "true"}, {"acquire", "job"}, {"elect", "job", "--", "true"}, {"serve", "--backend", url, "--listen", "127.0.0.1:0"}} {
		cmd := command(t, url, args...)
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said := make(chan bool, 1)
		go func() {
			for lines := bufio.NewScanner(stderr); lines.Scan(); {
				if strings.Contains(lines.Text(), "in quarantine") {
					said <- true
					return
				}
			}
			said <- false
		}()
		select {
		case ok := <-said:
			if !ok {
				t.Errorf("%v ended and did not say it", args)
			}
		case <-time.After(time.Minute):
			t.Errorf("%v does not say it", args)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}
