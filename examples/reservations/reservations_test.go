package main_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	reservations "github.com/holdfast-io/holdfast/examples/reservations"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

const twoHours = 2 * time.Hour

// TestOneBroker: of forty brokers at three instances one has the property, and all the others
// are told who.
func TestOneBroker(t *testing.T) {
	t.Parallel()
	redis := redisURL(testserver.Redis(t))
	var urls []string
	for range 3 {
		url, _ := instance(t, redis, twoHours, holdfast.Config{})
		urls = append(urls, url)
	}
	answers := each(40, func(i int) answer { return reserve(t, urls[i%3], "corretor-"+strconv.Itoa(i), "apto-12") })
	winner := ""
	for i, a := range answers {
		if a.status == http.StatusOK {
			if winner != "" {
				t.Errorf("%s and %s have the property", winner, a.Broker)
			}
			if winner = "corretor-" + strconv.Itoa(i); a.Broker != winner || a.Renewed || a.Number == 0 {
				t.Errorf("%s is told %s", winner, a.text)
			}
		}
	}
	for _, a := range answers {
		if a.status != http.StatusOK && (a.status != http.StatusConflict || a.Broker != winner || a.Property != "apto-12" || a.Until.IsZero()) {
			t.Errorf("%s has it, and another is told %d %s", winner, a.status, a.text)
		}
	}
	list := expect(t, do(t, http.MethodGet, urls[0]+"/reservas", ""), http.StatusOK)
	if len(list.List) != 1 || list.List[0].Broker != winner {
		t.Errorf("%s has it, and the list is %s", winner, list.text)
	}
}

// TestLife goes through a reservation on each kind of store, at two instances in turns.
func TestLife(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"redis", "postgres", "mysql", "etcd", "sqlite"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := storeURL(t, name)
			here, _ := instance(t, url, twoHours, holdfast.Config{})
			there, _ := instance(t, url, twoHours, holdfast.Config{})
			life(t, here, there)
		})
	}
}

// storeURL starts a store.
func storeURL(t *testing.T, name string) string {
	t.Helper()
	switch name {
	case "redis":
		return redisURL(testserver.Redis(t))
	case "postgres":
		return testserver.Postgres(t).URL()
	case "mysql":
		return testserver.MariaDB(t).URL()
	case "etcd":
		return "etcd://" + testserver.StartEtcd(t, testserver.EtcdOptions{})[0].Addr()
	default:
		return name + "://" + filepath.Join(t.TempDir(), "locks.db")
	}
}

func life(t *testing.T, here, there string) {
	t.Helper()
	expect(t, release(t, here, "ana", "casa 7"), http.StatusNotFound)
	begun := time.Now()
	mine := expect(t, reserve(t, here, "ana", "casa 7"), http.StatusOK)
	if least := begun.Add(twoHours - time.Second); mine.Renewed || mine.Until.Before(least) || mine.Until.After(time.Now().Add(twoHours)) {
		t.Errorf("two hours from %s on: %s", begun, mine.text)
	}
	taken := expect(t, reserve(t, there, "bia", "casa 7"), http.StatusConflict)
	if taken.Broker != "ana" || taken.Type != "urn:holdfast:example:reserved" || taken.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("who comes second is told %s", taken.text)
	}
	if apart := taken.Until.Sub(mine.Until).Abs(); apart > 10*time.Second { // a store may count whole seconds, and the machine may be busy
		t.Errorf("reserved until %s, and others are told %s", mine.Until, taken.Until)
	}
	expect(t, reserve(t, there, "bia", "casa 8"), http.StatusOK)
	again := expect(t, reserve(t, there, "ana", "casa 7"), http.StatusOK)
	if !again.Renewed || again.Number != mine.Number || again.Until.Before(mine.Until) {
		t.Errorf("reserved again: %s, and before: %s", again.text, mine.text)
	}
	expect(t, release(t, here, "bia", "casa 7"), http.StatusConflict)
	if list := expect(t, do(t, http.MethodGet, there+"/reservas", ""), http.StatusOK); len(list.List) != 2 ||
		list.List[0].Property != "casa 7" || list.List[0].Number != mine.Number || list.List[0].Since.IsZero() || list.List[1].Broker != "bia" || list.Next != "" {
		t.Errorf("the list is %s", list.text)
	}
	expect(t, release(t, there, "ana", "casa 7"), http.StatusNoContent)
	expect(t, release(t, here, "ana", "casa 7"), http.StatusNotFound)
	if next := expect(t, reserve(t, here, "bia", "casa 7"), http.StatusOK); next.Number <= mine.Number {
		t.Errorf("number %d comes after %d", next.Number, mine.Number)
	}
}

// TestFalls: without a renewal the property is free when its time has passed, and no sooner.
func TestFalls(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	url, _ := instance(t, redisURL(testserver.Redis(t)), ttl, holdfast.Config{})
	expect(t, reserve(t, url, "ana", "apto-12"), http.StatusOK)
	renewed := time.Now()
	expect(t, reserve(t, url, "ana", "apto-12"), http.StatusOK)
	for {
		a := reserve(t, url, "bia", "apto-12")
		if a.status == http.StatusOK {
			break
		}
		expect(t, a, http.StatusConflict)
	}
	if took := time.Since(renewed); took < ttl {
		t.Errorf("a reservation of %s fell %s after it was renewed", ttl, took)
	}
}

// TestRestart: reservations outlive the service, however it ends, and the new one continues
// with them.
func TestRestart(t *testing.T) {
	t.Parallel()
	redis := redisURL(testserver.Redis(t))
	first := start(t, "--backend", redis)
	mine := expect(t, reserve(t, first.url, "ana", "apto-12"), http.StatusOK)
	first.Terminate()
	if err := first.Wait(time.Minute); err != nil {
		t.Errorf("told to stop, it ended with %v: %s", err, first.Log())
	}
	second := start(t, "--backend", redis)
	expect(t, reserve(t, second.url, "bia", "apto-12"), http.StatusConflict)
	expect(t, reserve(t, second.url, "bia", "apto-13"), http.StatusOK)
	second.Kill()
	third := start(t, "--backend", redis)
	if again := expect(t, reserve(t, third.url, "ana", "apto-12"), http.StatusOK); !again.Renewed || again.Number != mine.Number {
		t.Errorf("after two restarts: %s", again.text)
	}
	expect(t, release(t, third.url, "bia", "apto-13"), http.StatusNoContent)
	http.DefaultClient.CloseIdleConnections()
}

// TestPages: the list comes in pages.
func TestPages(t *testing.T) {
	t.Parallel()
	url, _ := instance(t, "memory://", twoHours, holdfast.Config{})
	for i := range 7 {
		expect(t, reserve(t, url, "ana", fmt.Sprintf("apto-%d", i)), http.StatusOK)
	}
	var got []string
	for after := ""; ; {
		page := expect(t, do(t, http.MethodGet, url+"/reservas?limite=3&depois="+after, ""), http.StatusOK)
		for _, r := range page.List {
			got = append(got, r.Property)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if want := "apto-0 apto-1 apto-2 apto-3 apto-4 apto-5 apto-6"; strings.Join(got, " ") != want {
		t.Errorf("the pages have %s", got)
	}
}

// TestBadRequests: every refusal is a problem that says what is wrong.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	url, _ := instance(t, "memory://", twoHours, holdfast.Config{})
	for _, c := range []struct {
		method, path, body string
		status             int
		field              string
	}{
		{"POST", "/lock", ``, 400, "body"},
		{"POST", "/lock", `{`, 400, "body"},
		{"POST", "/lock", `[]`, 400, "body"},
		{"POST", "/lock", `{"idUsuario":"ana"}`, 400, "idImovel"},
		{"POST", "/lock", `{"idImovel":"apto-12"}`, 400, "idUsuario"},
		{"POST", "/lock", `{"idUsuario":7,"idImovel":"apto-12"}`, 400, "idUsuario"},
		{"POST", "/lock", `{"idUsuario":"ana","idImovel":"apto\n12"}`, 400, "idImovel"},
		{"POST", "/lock", `{"idUsuario":"ana","idImovel":"` + strings.Repeat("a", 201) + `"}`, 400, "idImovel"},
		{"POST", "/lock", `{"idUsuario":"ana","idImovel":"apto-12","horas":9}`, 400, "body"},
		{"POST", "/lock", `{"idUsuario":"ana","idImovel":"apto-12"} {}`, 400, "body"},
		{"POST", "/lock", `{"idUsuario":"ana","idImovel":"apto-12","numero":7}`, 400, "numero"},
		{"POST", "/lock", `{"idUsuario":"ana","idImovel":"` + strings.Repeat("a", 5000) + `"}`, 413, ""},
		{"POST", "/release", `{"idUsuario":"ana","idImovel":"apto-12","numero":-1}`, 400, "numero"},
		{"POST", "/release", `{"idUsuario":"","idImovel":"apto-12"}`, 400, "idUsuario"},
		{"GET", "/reservas?limite=0", ``, 400, "limite"},
		{"GET", "/reservas?limite=501", ``, 400, "limite"},
		{"GET", "/reservas?depois=%00", ``, 400, "depois"},
		{"GET", "/lock", ``, 405, ""},
		{"GET", "/nothing", ``, 404, ""},
	} {
		a := do(t, c.method, url+c.path, c.body)
		if a.status != c.status || a.Field != c.field || a.Detail == "" || a.Type == "" || a.Title == "" || a.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s %.60s: %d %s", c.method, c.path, c.body, a.status, a.text)
		}
	}
	if list := do(t, http.MethodGet, url+"/reservas", ""); len(list.List) != 0 {
		t.Errorf("bad requests have reserved %s", list.text)
	}
}

// TestRefusedAtStart: a backend that cannot keep a reservation for two hours is refused
// before anything is served, with the bound or the reason.
func TestRefusedAtStart(t *testing.T) {
	t.Parallel()
	run := func(args ...string) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return reservations.Run(ctx, append([]string{"--listen", "127.0.0.1:0"}, args...), io.Discard, io.Discard)
	}
	var nodes []string
	for _, node := range testserver.RedisNodes(t, 3) {
		nodes = append(nodes, node.Addr())
	}
	var bad *holdfast.InvalidError
	if err := run("--backend", "redlock://"+strings.Join(nodes, ",")); !errors.As(err, &bad) || bad.Field != "ttl" || !strings.Contains(bad.Bound, "30s") {
		t.Errorf("redlock keeps nothing for two hours: %v", err)
	}
	zookeeper := "zookeeper://" + testserver.StartZooKeeper(t, 1)[0].Addr() + "/locks"
	if err := run("--backend", zookeeper); !errors.Is(err, holdfast.ErrUnsupported) {
		t.Errorf("leases of ZooKeeper end with their process: %v", err)
	}
	if err := run("--backend", "memory://", "--for", "1s"); !errors.As(err, &bad) || bad.Field != "ttl" {
		t.Errorf("a second is too short: %v", err)
	}
	for _, args := range [][]string{{"--backend", "nothing://"}, {"--for", "soon"}, {"word"}} {
		if err := run(args...); err == nil {
			t.Errorf("%q is good enough", args)
		}
	}
	if err := run("-help"); err != nil {
		t.Errorf("-help: %v", err)
	}
}
