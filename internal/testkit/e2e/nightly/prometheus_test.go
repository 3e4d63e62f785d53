// Package nightly_test tests the files in deploy with the programs that read them.
package nightly_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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

// rules is the part of rules.yaml and of rules_test.yaml that the tests read.
type rules struct {
	Groups []struct {
		Rules []struct {
			Alert       string
			Expr        string
			Annotations map[string]string
		}
	}
	Tests []struct {
		Alerts []struct {
			Alertname string
			Exp       []any `yaml:"exp_alerts"`
		} `yaml:"alert_rule_test"`
	}
}

func readRules(t *testing.T, name string) rules {
	t.Helper()
	var r rules
	if err := yaml.Unmarshal([]byte(read(t, "deploy", "prometheus", name)), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// expressions returns the expressions of the alerts and of the dashboard, by where they are.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, g := range readRules(t, "rules.yaml").Groups {
		for _, r := range g.Rules {
			all["alert "+r.Alert] = r.Expr
		}
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ RefID, Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "deploy", "grafana", "holdfast.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all["panel "+p.Title+", "+target.RefID] = target.Expr
		}
	}
	if len(all) < 30 {
		t.Fatalf("only %d expressions were found", len(all))
	}
	return all
}

// Prometheus accepts the rules, and each alert fires and stays silent as rules_test.yaml says.
func TestAlerts(t *testing.T) {
	t.Parallel()
	promtool := testserver.Tool(t, "promtool")
	must(t, promtool, "check", "rules", "--lint-fatal", file(t, "deploy", "prometheus", "rules.yaml"))
	must(t, promtool, "test", "rules", file(t, "deploy", "prometheus", "rules_test.yaml"))
}

// Each alert has a test in which it fires and one in which it does not, and a section in the manual,
// which its annotation names.
func TestAlertsAreExplained(t *testing.T) {
	t.Parallel()
	fires, silent := make(map[string]bool), make(map[string]bool)
	for _, c := range readRules(t, "rules_test.yaml").Tests {
		for _, a := range c.Alerts {
			fires[a.Alertname] = fires[a.Alertname] || len(a.Exp) > 0
			silent[a.Alertname] = silent[a.Alertname] || len(a.Exp) == 0
		}
	}
	manual := read(t, "docs", "operations.md")
	for _, g := range readRules(t, "rules.yaml").Groups {
		for _, r := range g.Rules {
			if !fires[r.Alert] || !silent[r.Alert] {
				t.Errorf("%s: rules_test.yaml has no test in which it fires, or none in which it does not", r.Alert)
			}
			if !strings.Contains(manual, "\n### "+r.Alert+"\n") || r.Annotations["runbook"] != "docs/operations.md#"+strings.ToLower(r.Alert) {
				t.Errorf("%s: no section in docs/operations.md, or the annotation names another one", r.Alert)
			}
		}
	}
}

// Prometheus can parse the expressions of the dashboard.
func TestDashboardExpressions(t *testing.T) {
	t.Parallel()
	type rule struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var all []rule
	for where, expr := range expressions(t) {
		if strings.HasPrefix(where, "panel ") {
			expr = strings.NewReplacer("$__rate_interval", "1m", "$job", "holdfast", "$instance", ".+").Replace(expr)
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

// Alerts and dashboard name only metrics, and labels with values, that a server exports.
func TestMetricsExist(t *testing.T) {
	t.Parallel()
	page := serve(t, holdfast(t))
	labels := map[string]map[string]bool{"up": {}} // up and two labels are Prometheus's own
	for _, m := range regexp.MustCompile(`(?m)^(\w+)(?:\{(.*)\})? \S+$`).FindAllStringSubmatch(page, -1) {
		if labels[m[1]] == nil {
			labels[m[1]] = map[string]bool{"job": true, "instance": true}
		}
		for _, l := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(m[2], -1) {
			labels[m[1]][l[1]] = true
		}
	}
	by := regexp.MustCompile(`by \(([^)]*)\)`)
	for where, expr := range expressions(t) {
		found := regexp.MustCompile(`\b(?:holdfast|go|process)_\w+`).FindAllString(expr, -1)
		for _, name := range found {
			if labels[name] == nil {
				t.Errorf("%s: the server does not export %s", where, name)
				continue
			}
			for _, group := range by.FindAllStringSubmatch(expr, -1) {
				for label := range strings.SplitSeq(group[1], ", ") {
					if !labels[name][label] {
						t.Errorf("%s: %s has the labels %v, not %s", where, name, slices.Sorted(maps.Keys(labels[name])), label)
					}
				}
			}
		}
		if len(found) == 0 && !strings.Contains(expr, "up{") {
			t.Errorf("%s: no metric in %q", where, expr)
		}
	}
}
