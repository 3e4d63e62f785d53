package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/fence/httpfence"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

const samples = "../../../../docs/languages"

// workers are the samples that the tests run, each with its command. Worker.cs is not one of them: CI has no .NET.
func workers() map[string][]string {
	return map[string][]string{
		"worker.sh":   {"sh"},
		"worker.py":   {"python3"},
		"worker.mjs":  {"node"},
		"Worker.java": {"java", "-Xshare:auto", "-XX:TieredStopAtLevel=1"},
	}
}

// The page links to each sample.
func TestFromAnyLanguageLinksTheSamples(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(samples, "*"))
	if err != nil || len(files) != len(workers())+1 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	page, err := os.ReadFile("../../../../docs/from-any-language.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if name := filepath.Base(file); !strings.Contains(string(page), "](languages/"+name+")") {
			t.Errorf("docs/from-any-language.md does not link to %s", name)
		}
	}
}

// written is a write that the resource accepted or refused.
type written struct {
	token   fence.Token
	refused bool
	at      time.Time
}

// guarded is a resource that refuses stale tokens. Its writes are recorded in the order of their decisions.
type guarded struct {
	url string

	mu     sync.Mutex
	writes []written
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := new(guarded)
	note := func(stamp fence.Stamp, refused bool) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.writes = append(g.writes, written{stamp.Token, refused, time.Now()})
	}
	guard := fence.NewGuard()
	h, err := httpfence.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusNoContent)
	}), httpfence.Config{
		Authorize: httpfence.Authenticated,
		Resource:  func(r *http.Request) string { return r.URL.Path },
		Gate: func(ctx context.Context, resource string, stamp fence.Stamp, serve func()) error {
			err := httpfence.InProcess(guard)(ctx, resource, stamp, func() { note(stamp, false); serve() })
			if err != nil {
				note(stamp, true)
			}
			return err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	g.url = srv.URL + "/stock/7"
	return g
}

func (g *guarded) all() []written {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]written(nil), g.writes...)
}

// await waits until the recorded writes satisfy the condition.
func (g *guarded) await(t *testing.T, what string, ok func([]written) bool) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !ok(g.all()); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within three minutes: %+v", what, g.all())
		}
	}
}

const sampleTTL = 26 * time.Second // the least that worker.sh takes

// A holder of each language is killed with SIGKILL, and the next one gets the lock with a greater token; the next one is
// stopped past its lease, and writes nothing after a third has written. Renewals keep the lock for longer than its TTL, and a
// worker that ends releases it.
func TestFromAnyLanguage(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	// In memory: on a disk that stands still the two renewals of worker.sh would fail.
	srv := startServerOn(t, testserver.FreePort(t), "--backend", "memory://")
	for file, program := range workers() {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			testWorker(t, "http://"+srv.addr, "shelf/"+file, newGuarded(t), append(program, filepath.Join(samples, file)))
		})
	}
}

// With a shorter TTL a write of the shell's worker could outlive the lease: it refuses to begin.
func TestShellWorkerWantsALongTTL(t *testing.T) {
	t.Parallel()
	for _, ttl := range []string{"25", "4", "0", "-30", "30s"} {
		cmd := exec.CommandContext(t.Context(), "sh", filepath.Join(samples, "worker.sh"), "http://127.0.0.1:1", "a", "http://127.0.0.1:1", "1")
		cmd.Env = append(os.Environ(), "TTL="+ttl)
		out, err := cmd.CombinedOutput()
		if _, exited := errors.AsType[*exec.ExitError](err); !exited || !strings.Contains(string(out), "must be more than 25") {
			t.Errorf("TTL=%s: %v, %q", ttl, err, out)
		}
	}
}

func testWorker(t *testing.T, server, lock string, g *guarded, program []string) {
	t.Helper()
	name := strings.ReplaceAll(lock, "/", "%2F")
	begin := func(writes int) *worker {
		as := lock
		if program[0] == "sh" {
			as = name // it wants a name that is encoded already
		}
		return startWorker(t, append(slices.Clip(program), server, as, g.url, strconv.Itoa(writes)))
	}
	queue := func(holders, waiters int) {
		t.Helper()
		awaitLock(t, server+"/v1/locks/"+name, holders, waiters)
	}
	const many = 10_000

	first := begin(many)
	g.await(t, "the first writes for longer than its TTL", func(ws []written) bool {
		return len(ws) > 0 && ws[len(ws)-1].at.Sub(ws[0].at) > sampleTTL+time.Second
	})
	second := begin(many)
	queue(1, 1)
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	killed := len(g.all())
	g.await(t, "the second writes", func(ws []written) bool { return len(ws) > killed+3 })

	third := begin(3)
	queue(1, 1)
	if err := syscall.Kill(-second.Process.Pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := third.Wait(); err != nil {
		t.Fatalf("the third: %v\n%s", err, third.output)
	}
	queue(0, 0) // it was released: the TTL has not passed
	if err := syscall.Kill(-second.Process.Pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := second.Wait(); err == nil {
		t.Error("the second was stopped past its lease, and ended without an error")
	}
	checkWrites(t, g.all())

	// The resource refuses the token of the killed holder, also when no worker is left to notice.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, g.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(httpfence.Header, g.all()[0].token.String())
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Body.Close(); answer.StatusCode != http.StatusPreconditionFailed {
		t.Errorf("the token of the first: status %d", answer.StatusCode)
	}
}

// checkWrites checks that three tokens were used, each greater than the one before, and that no write with an old one was
// accepted.
func checkWrites(t *testing.T, ws []written) {
	t.Helper()
	var tokens []fence.Token
	for _, w := range ws {
		if w.refused {
			continue
		}
		if n := len(tokens); n == 0 || w.token > tokens[n-1] {
			tokens = append(tokens, w.token)
		} else if w.token < tokens[n-1] {
			t.Errorf("a write with token %d was accepted after one with token %d", w.token, tokens[n-1])
		}
	}
	if len(tokens) != 3 {
		t.Errorf("writes with the tokens %d; want three", tokens)
	}
}

// worker is a sample that runs, in a process group of its own.
type worker struct {
	*exec.Cmd
	output *strings.Builder
}

func startWorker(t *testing.T, argv []string) *worker {
	t.Helper()
	w := &worker{exec.CommandContext(t.Context(), argv[0], argv[1:]...), new(strings.Builder)}
	w.Env = append(os.Environ(), fmt.Sprintf("TTL=%d", int(sampleTTL.Seconds())))
	w.Stdout, w.Stderr = w.output, w.output
	w.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	w.WaitDelay = 10 * time.Second
	if err := w.Start(); err != nil {
		t.Fatalf("%v; scripts/install-test-deps installs what is missing", err)
	}
	t.Cleanup(func() {
		if w.ProcessState == nil {
			_ = syscall.Kill(-w.Process.Pid, syscall.SIGKILL)
			_ = w.Wait()
		}
		if t.Failed() {
			t.Logf("%s:\n%s", argv, w.output)
		}
	})
	return w
}

// awaitLock waits until the lock has so many holders and waiters.
func awaitLock(t *testing.T, url string, holders, waiters int) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var is struct{ Holders, Waiters []struct{ Owner string } }
		err = json.NewDecoder(answer.Body).Decode(&is)
		_ = answer.Body.Close()
		if err == nil && len(is.Holders) == holders && len(is.Waiters) == waiters {
			return
		}
		last = fmt.Sprintf("%+v, %v", is, err)
	}
	t.Fatalf("%s does not have %d holders and %d waiters: %s", url, holders, waiters, last)
}
