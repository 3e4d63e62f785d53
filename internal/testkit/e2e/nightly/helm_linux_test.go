package nightly_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-io/holdfast/internal/certs"
	"github.com/holdfast-io/holdfast/internal/testkit/launch"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// values are those that the chart demands.
func values() []string {
	return []string{"--set", "tls.secret=server", "--set", "policy.secret=policy", "--set", "backend.url=etcd://etcd"}
}

// object is a part of an object of Kubernetes.
type object struct {
	Kind string
	Spec struct {
		Replicas int
		Template struct{ Spec pod }
	}
}

type pod struct {
	Containers []struct {
		Args []string
		Env  []struct{ Name, Value string }

		ReadinessProbe struct {
			HTTPGet struct {
				Path        string
				HTTPHeaders []struct{ Name, Value string } `yaml:"httpHeaders"`
			} `yaml:"httpGet"`
		} `yaml:"readinessProbe"`
	}
}

// chart renders the chart in the namespace locks, and decodes each object as T.
func chart[T any](t *testing.T, args ...string) []T {
	t.Helper()
	text := must(t, testserver.Tool(t, "helm"), slices.Concat([]string{"template", "x", file(t, "deploy", "helm", "holdfast"), "--namespace", "locks"}, args)...)
	var all []T
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o T
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		all = append(all, o)
	}
}

// An API server of Kubernetes accepts every object of the chart, with strict fields.
func TestChart(t *testing.T) {
	t.Parallel()
	helm := testserver.Tool(t, "helm")
	must(t, helm, slices.Concat([]string{"lint", "--strict", file(t, "deploy", "helm", "holdfast")}, values())...)
	paths := map[string]string{
		"Service": "/api/v1/namespaces/locks/services", "Deployment": "/apis/apps/v1/namespaces/locks/deployments",
		"PodDisruptionBudget": "/apis/policy/v1/namespaces/locks/poddisruptionbudgets",
	}
	k := testserver.Kubernetes(t)
	k.Namespace("locks")
	more := []string{
		"--set", "backend.secret=store", "--set", "backend.files=authority", "--set", "tls.clientCA=true", "--set", "nodeSelector.disk=ssd",
		"--set", "tolerations[0].operator=Exists",
	}
	for _, values := range [][]string{values(), slices.Concat(values(), more)} {
		kinds := make(map[string]int)
		for _, o := range chart[map[string]any](t, values...) {
			kind, _ := o["kind"].(string)
			kinds[kind]++
			body, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := launch.KubernetesCall(t.Context(), k.Server, http.MethodPost, paths[kind]+"?dryRun=All&fieldValidation=Strict", string(body)); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		}
		if !maps.Equal(kinds, map[string]int{"Service": 1, "Deployment": 1, "PodDisruptionBudget": 1}) {
			t.Errorf("the chart has %v", kinds)
		}
	}
	for i := 1; i < len(values()); i += 2 { // without any one of them
		rest := slices.Delete(values(), i-1, i+1)
		cmd := exec.CommandContext(t.Context(), helm, slices.Concat([]string{"template", "x", file(t, "deploy", "helm", "holdfast")}, rest)...)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), strings.Split(values()[i], "=")[0]+": the ") {
			t.Errorf("without %s: %v\n%s", values()[i], err, out)
		}
	}
}

// The container of the chart, run as a process with its address and folders replaced, serves clients that it knows; the probe
// of kubelet finds it ready.
func TestChartRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	authority, err := certs.New("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(certs.Server, "", "127.0.0.1", "x-holdfast.locks.svc")
	if err != nil {
		t.Fatal(err)
	}
	policy := fmt.Appendf(nil, "principals: {admin: {tokens: [%x]}}\ngrants: [{to: [admin], locks: [\"*\"], verbs: [acquire, read]}]", sha256.Sum256([]byte("a-token")))
	for name, data := range map[string][]byte{"tls/tls.crt": pair.Cert, "tls/tls.key": pair.Key, "tls/ca.crt": authority.PEM(), "policy/policy.yaml": policy} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	addr := "127.0.0.1:" + strconv.Itoa(testserver.FreePort(t))
	store := "sqlite://" + filepath.Join(testserver.Dir(t), "locks.db")
	all := chart[object](t, append(values(), "--set", "backend.url="+store)...)
	container := all[slices.IndexFunc(all, func(o object) bool { return o.Kind == "Deployment" })].Spec.Template.Spec.Containers[0]
	var args, env []string
	for _, arg := range container.Args {
		args = append(args, strings.NewReplacer("/etc/holdfast", dir, "=:7420", "="+addr).Replace(arg))
	}
	for _, e := range container.Env {
		env = append(env, e.Name+"="+e.Value)
	}
	p := testserver.Start(t, testserver.Command{Path: holdfast(t), Args: args, Env: env})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	probe := container.ReadinessProbe.HTTPGet
	for host, want := range map[string]int{probe.HTTPHeaders[0].Value: http.StatusOK, "evil.example": http.StatusForbidden} {
		p.Await(time.Minute, func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+addr+probe.Path, nil)
			if err != nil {
				return err
			}
			req.Host = host
			res, err := transport.RoundTrip(req)
			if err != nil {
				return err
			}
			_ = res.Body.Close()
			if res.StatusCode != want {
				return fmt.Errorf("host %s: status %d, want %d", host, res.StatusCode, want)
			}
			return nil
		})
	}
	for url, known := range map[string]bool{"holdfasts://:a-token@" + addr: true, "holdfasts://" + addr: false} {
		cmd := exec.CommandContext(t.Context(), holdfast(t), "acquire", "n", "--ttl", "10m")
		cmd.Env = append(os.Environ(), "HOLDFAST_BACKEND="+url, "SSL_CERT_FILE="+filepath.Join(dir, "tls", "ca.crt"))
		if out, err := cmd.CombinedOutput(); (err == nil) != known {
			t.Errorf("a client with a token: %v: %v\n%s", known, err, out)
		}
	}
}
