// Package nightly_test tests the files in deploy with the programs that read them.
package nightly_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-io/holdfast/internal/testkit/launch"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// file returns the path of a file in the repository.
func file(t *testing.T, path ...string) string {
	t.Helper()
	root, err := launch.Repository()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(append([]string{root}, path...)...)
}

// read returns the text of a file in the repository.
func read(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(file(t, path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// must runs a program that has to succeed and returns what it printed.
func must(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return string(out)
}

// holdfast returns the path of the command without the race detector, which adds a second to each run.
func holdfast(t *testing.T) string {
	t.Helper()
	return testserver.Tool(t, "holdfast")
}

// Prometheus accepts the rules, and each alert fires and stays silent as rules_test.yaml says.
func TestAlerts(t *testing.T) {
	t.Parallel()
	promtool := testserver.Tool(t, "promtool")
	must(t, promtool, "check", "rules", "--lint-fatal", file(t, "deploy", "prometheus", "rules.yaml"))
	must(t, promtool, "test", "rules", file(t, "deploy", "prometheus", "rules_test.yaml"))
}

// Prometheus can parse the expressions of the dashboard.
func TestDashboardExpressions(t *testing.T) {
	t.Parallel()
	type rule struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal([]byte(read(t, "deploy", "grafana", "holdfast.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	var all []rule
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "1m", "$job", "holdfast", "$instance", ".+").Replace(target.Expr)
			all = append(all, rule{fmt.Sprintf("panel:%d", len(all)), expr})
		}
	}
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": all}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, testserver.Tool(t, "promtool"), "check", "rules", path)
}

// serve starts a server with TLS, and returns its page of metrics.
func serve(t *testing.T, binary string) string {
	t.Helper()
	certs := testserver.NewCertificates(t)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: certs.Client(t)}}
	t.Cleanup(client.CloseIdleConnections)
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	p := testserver.Start(t, testserver.Command{Path: binary, Args: []string{
		"serve", "--listen", addr, "--data-dir", filepath.Join(testserver.Dir(t), "data"), "--tls-cert", certs.ServerCert, "--tls-key", certs.ServerKey,
	}})
	p.Await(time.Minute, func(ctx context.Context) error {
		_, err := getBy(ctx, client, "https://"+addr+"/readyz")
		return err
	})
	page, err := getBy(t.Context(), client, "https://"+addr+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// get returns a page; an answer other than 200 is an error.
func get(ctx context.Context, url string) (string, error) { return getBy(ctx, http.DefaultClient, url) }

func getBy(ctx context.Context, client *http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, body)
	}
	return string(body), err
}
