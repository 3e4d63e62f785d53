package e2e_test

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// What in deploy and in docs/operations.md must follow the command. The programs that read those files are in nightly.

// readFile returns the text of a file in the repository.
func readFile(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.Join(path...)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// helpOf returns the help of a command. The command is without the race detector, which adds a second to each run.
func helpOf(t *testing.T, command ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), testserver.Tool(t, "holdfast"), append(command, "--help")...).CombinedOutput()
	if err != nil {
		t.Errorf("%q: %v", command, err)
	}
	return string(out)
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
	if err := yaml.Unmarshal([]byte(readFile(t, "deploy", "prometheus", name)), &r); err != nil {
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
	if err := json.Unmarshal([]byte(readFile(t, "deploy", "grafana", "holdfast.json")), &dashboard); err != nil {
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

// Each alert has a test in which it fires and one in which it does not, and a section in the manual,
// which its annotation names.
func TestAlertsAreExplained(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	fires, silent := make(map[string]bool), make(map[string]bool)
	for _, c := range readRules(t, "rules_test.yaml").Tests {
		for _, a := range c.Alerts {
			fires[a.Alertname] = fires[a.Alertname] || len(a.Exp) > 0
			silent[a.Alertname] = silent[a.Alertname] || len(a.Exp) == 0
		}
	}
	manual := readFile(t, "docs", "operations.md")
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

// pageOfMetrics returns what a server with TLS exports.
func pageOfMetrics(t *testing.T) string {
	t.Helper()
	certs := testserver.NewCertificates(t)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: certs.Client(t)}}
	t.Cleanup(client.CloseIdleConnections)
	addr := "127.0.0.1:" + strconv.Itoa(testserver.FreePort(t))
	p := testserver.Start(t, testserver.Command{Path: testserver.Tool(t, "holdfast"), Args: []string{
		"serve", "--listen", addr, "--data-dir", filepath.Join(testserver.Dir(t), "data"), "--tls-cert", certs.ServerCert, "--tls-key", certs.ServerKey,
	}})
	var page []byte
	p.Await(time.Minute, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+addr+"/metrics", nil)
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		page, err = io.ReadAll(res.Body)
		return err
	})
	return string(page)
}

// Alerts and dashboard name only metrics, and labels with values, that a server exports.
func TestMetricsExist(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	page := pageOfMetrics(t)
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

// The flags in the unit and in the example of its options exist.
func TestSystemdFlags(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	help := helpOf(t, "serve")
	text := readFile(t, "deploy", "systemd", "holdfast.service") + readFile(t, "deploy", "systemd", "holdfast.default")
	flags := regexp.MustCompile(`--[a-z-]+`).FindAllString(text, -1)
	if len(flags) < 5 {
		t.Errorf("only the flags %q were found", flags)
	}
	for _, flag := range slices.Compact(slices.Sorted(slices.Values(flags))) {
		if !strings.Contains(help, flag+" ") && flag != "--help" {
			t.Errorf("serve has no %s", flag)
		}
	}
}
