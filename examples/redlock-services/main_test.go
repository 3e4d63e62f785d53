package main

import (
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

	"github.com/holdfast-io/holdfast/examples/internal/web"
	"github.com/holdfast-io/holdfast/examples/redlock-services/internal/services"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestMain(m *testing.M) {
	if testserver.IsService() {
		os.Exit(web.Main("redlock-services", run))
	}
	os.Exit(m.Run())
}

// TestServe: health and the metrics that the document asks for are served. SIGTERM ends the program, and the Redis servers that
// it has started.
func TestServe(t *testing.T) {
	t.Parallel()
	p, url := testserver.Service(t)
	if said := "3 instances: 5 files, processed 5 times; 15 invoices, the last has number 15; 40 changes synchronised\nhealth: healthy []\n"; !strings.Contains(p.Log(), said) {
		t.Errorf("it says %s", p.Log())
	}
	testserver.Do[any](t, http.MethodGet, url+"/healthz", "").Expect(t, http.StatusOK, "")
	metrics, _ := testserver.Ask[any](t.Context(), http.MethodGet, url+"/metrics", "") // which are no JSON
	for _, want := range []string{
		`holdfast_acquire_total{backend="redlock",mode="exclusive",result="acquired"}`, `holdfast_acquire_total{backend="redlock",mode="exclusive",result="held"}`,
		`holdfast_wait_seconds_count{backend="redlock",mode="exclusive"}`, `holdfast_hold_seconds_count`, `holdfast_lost_total`,
	} {
		if !strings.Contains(metrics.Text, want) {
			t.Errorf("there is no %s", want)
		}
	}
	nodes := strings.Split(regexp.MustCompile(`redlock://([0-9.:,]+)`).FindStringSubmatch(p.Log())[1], ",")
	p.Terminate()
	if err := p.Wait(time.Minute); err != nil || len(nodes) != 3 {
		t.Errorf("nodes %q, %v: %s", nodes, err, p.Log())
	}
	for _, addr := range nodes {
		if conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr); err == nil {
			_ = conn.Close()
			t.Errorf("the server at %s was left behind", addr)
		}
	}
}

// TestProcesses: four processes of two instances, on the same servers and database. Each file is processed once, the IDs have
// no gaps, and each change comes once.
func TestProcesses(t *testing.T) {
	t.Parallel()
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
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-backend", url, "-data", data, "-instances", "2")
			cmd.Env = append(os.Environ(), testserver.ServiceEnv+"=1")
			out, err := cmd.CombinedOutput()
			if said[i] = string(out); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	files, changes := 0, 0
	for _, found := range regexp.MustCompile(`processed (\d+) times; .* (\d+) changes`).FindAllStringSubmatch(strings.Join(said, ""), -1) {
		here, _ := strconv.Atoi(found[1])
		synchronised, _ := strconv.Atoi(found[2])
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
