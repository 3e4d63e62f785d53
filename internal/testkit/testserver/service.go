package testserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// ServiceEnv is set where the test binary is to be the service that it tests.
const ServiceEnv = "HOLDFAST_TEST_SERVICE"

// IsService reports that TestMain has to run the service, in place of the tests.
func IsService() bool { return os.Getenv(ServiceEnv) != "" }

// Service starts the test binary as a service in a process of its own, on a port that the service
// chooses, and waits until it reports that it listens. It returns the process and the URL.
func Service(t testing.TB, args ...string) (*Process, string) {
	t.Helper()
	exe, err := os.Executable()
	check(t, err)
	p := Start(t, Command{Path: exe, Args: append([]string{"--listen", "127.0.0.1:0"}, args...), Env: []string{ServiceEnv + "=1"}, Interrupt: syscall.SIGTERM})
	line := regexp.MustCompile(`listening on (http://\S+)\n`)
	var url string
	p.Await(time.Minute, func(context.Context) error {
		found := line.FindStringSubmatch(p.Log())
		if found == nil {
			return errors.New("it does not listen")
		}
		url = found[1]
		return nil
	})
	return p, url
}

// Answer is the response of a service: its text, what a problem of it is called, and its JSON.
type Answer[T any] struct {
	Status  int
	Header  http.Header
	Text    string
	Problem string
	Body    T
}

// Ask sends a request to an example, from any goroutine. header are names and values in turns. The client prefers Portuguese,
// which every problem has: another language is an error, as is a body that is no T.
func Ask[T any](ctx context.Context, method, url, body string, header ...string) (Answer[T], error) {
	var a Answer[T]
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return a, fmt.Errorf("testserver: %w", err)
	}
	r.Header.Set("Accept-Language", "pt-BR, en;q=0.5")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return a, fmt.Errorf("testserver: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	a.Status, a.Header, a.Text = res.StatusCode, res.Header, string(text)
	if err != nil {
		return a, fmt.Errorf("testserver: %w", err)
	}
	if len(text) == 0 {
		return a, nil
	}
	if res.Header.Get("Content-Type") == "application/problem+json" {
		var problem struct{ Type string }
		err = json.Unmarshal(text, &problem)
		a.Problem = strings.TrimPrefix(problem.Type, "urn:holdfast:example:")
		if lang := res.Header.Get("Content-Language"); lang != "pt" {
			return a, fmt.Errorf("a problem in the language %q: %s", lang, text)
		}
	}
	return a, errors.Join(err, json.Unmarshal(text, &a.Body))
}

// Do is Ask in the name of a test.
func Do[T any](t testing.TB, method, url, body string, header ...string) Answer[T] {
	t.Helper()
	a, err := Ask[T](t.Context(), method, url, body, header...)
	if err != nil {
		t.Errorf("%s %s: %v", method, url, err)
	}
	return a
}

// Expect fails the test unless the answer has that status, and is that problem or none.
func (a Answer[T]) Expect(t testing.TB, status int, problem string) Answer[T] {
	t.Helper()
	if a.Status != status || a.Problem != problem {
		t.Fatalf("the answer is %d %q, not %d %q: %s", a.Status, a.Problem, status, problem, a.Text)
	}
	return a
}

// Together runs f for 0 to n-1 concurrently.
func Together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}
