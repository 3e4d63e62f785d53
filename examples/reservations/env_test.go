package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	reservations "github.com/holdfast-io/holdfast/examples/reservations"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/open"
)

// serviceEnv makes this binary the service, with the arguments of the test.
const serviceEnv = "HOLDFAST_EXAMPLE_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(serviceEnv) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		err := reservations.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m)
}

// redisURL is the URL of a server that has lost nothing: it need not wait for leases that it
// may have forgotten.
func redisURL(s *testserver.RedisServer) string { return "redis://" + s.Addr() + "?quarantine=off" }

// process is an instance of the service in a process of its own.
type process struct {
	*testserver.Process
	url string
}

// start starts one and waits until it listens.
func start(t *testing.T, args ...string) process {
	t.Helper()
	p, url := testserver.Service(t, serviceEnv+"=1", args...)
	return process{p, url}
}

// instance is an instance of the service in this process, with a backend and a client of its own.
func instance(t *testing.T, url string, ttl time.Duration, cfg holdfast.Config) (string, *holdfast.Client) {
	t.Helper()
	b, err := open.URL(t.Context(), url, open.Options{})
	if err != nil {
		t.Fatal(err)
	}
	locks, err := holdfast.New(b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	book, err := reservations.NewBook(locks, ttl)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(reservations.NewAPI(book, slog.New(slog.DiscardHandler)))
	t.Cleanup(func() {
		server.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := locks.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		_ = b.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return server.URL, locks
}

// answer is what the service said.
type answer struct {
	status int
	header http.Header
	text   string

	Type     string    `json:"type"`
	Title    string    `json:"title"`
	Detail   string    `json:"detail"`
	Field    string    `json:"field"`
	Property string    `json:"idImovel"`
	Broker   string    `json:"idUsuario"`
	Number   uint64    `json:"numero"`
	Renewed  bool      `json:"renovada"`
	Until    time.Time `json:"ate"`
	Next     string    `json:"proximo"`
	List     []struct {
		Property string    `json:"idImovel"`
		Broker   string    `json:"idUsuario"`
		Number   uint64    `json:"numero"`
		Since    time.Time `json:"desde"`
		Until    time.Time `json:"ate"`
	} `json:"reservas"`
}

// do sends one request, from any goroutine.
func do(t *testing.T, method, url, body string) answer {
	t.Helper()
	a, err := try(t.Context(), method, url, body)
	if err != nil {
		t.Error(err)
	}
	if lang := a.header.Get("Content-Language"); a.Type != "" && lang != "pt" {
		t.Errorf("%s %s: a problem in the language %q: %s", method, url, lang, a.text)
	}
	return a
}

func try(ctx context.Context, method, url, body string) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewBufferString(body))
	if err != nil {
		return answer{}, err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{status: res.StatusCode, header: res.Header, text: string(text)}
	if len(text) > 0 {
		err = json.Unmarshal(text, &a)
	}
	return a, err
}

// reserve and release are the two calls of the document.
func reserve(t *testing.T, url, broker, property string) answer {
	t.Helper()
	return do(t, http.MethodPost, url+"/lock", fmt.Sprintf(`{"idUsuario":%q,"idImovel":%q}`, broker, property))
}

func release(t *testing.T, url, broker, property string) answer {
	t.Helper()
	return do(t, http.MethodPost, url+"/release", fmt.Sprintf(`{"idUsuario":%q,"idImovel":%q}`, broker, property))
}

// expect fails the test when the answer has another status.
func expect(t *testing.T, a answer, status int) answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("the answer is %d, not %d: %s", a.status, status, a.text)
	}
	return a
}

// each runs f for 0 to n-1 concurrently and collects the answers.
func each(n int, f func(i int) answer) []answer {
	answers := make([]answer, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { answers[i] = f(i) })
	}
	wg.Wait()
	return answers
}
