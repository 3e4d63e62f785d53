package deploy_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	"github.com/holdfast-io/holdfast/internal/launch"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// secrets are the values that the chart demands.
func secrets() []string {
	return []string{"--set", "tls.secret=server", "--set", "peerTLS.secret=peers", "--set", "policy.secret=policy", "--set", "init.secret=admin"}
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
	must(t, helm, slices.Concat([]string{"lint", "--strict", file(t, "deploy", "helm", "holdfast")}, secrets())...)
	paths := map[string]string{
		"Service": "/api/v1/namespaces/locks/services", "StatefulSet": "/apis/apps/v1/namespaces/locks/statefulsets",
		"Job": "/apis/batch/v1/namespaces/locks/jobs", "PodDisruptionBudget": "/apis/policy/v1/namespaces/locks/poddisruptionbudgets",
	}
	k := testserver.Kubernetes(t)
	k.Namespace("locks")
	more := []string{"--set", "storage.className=fast", "--set", "tls.clientCA=true", "--set", "nodeSelector.disk=ssd", "--set", "tolerations[0].operator=Exists"}
	for _, values := range [][]string{secrets(), slices.Concat(secrets(), more)} {
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
		if kinds["Service"] != 2 || kinds["StatefulSet"] != 1 || kinds["Job"] != 1 || kinds["PodDisruptionBudget"] != 1 {
			t.Errorf("the chart has %v", kinds)
		}
	}
	for _, o := range chart[object](t, append(secrets(), "--is-upgrade")...) {
		if o.Kind == "Job" {
			t.Error("an upgrade forms a cluster")
		}
	}
	for i := 1; i < len(secrets()); i += 2 { // without any one of them
		values := slices.Delete(secrets(), i-1, i+1)
		cmd := exec.CommandContext(t.Context(), helm, slices.Concat([]string{"template", "x", file(t, "deploy", "helm", "holdfast")}, values)...)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), strings.Split(secrets()[i], "=")[0]+": the secret") {
			t.Errorf("without %s: %v\n%s", secrets()[i], err, out)
		}
	}
}

// The containers of the chart, run as processes with their addresses and folders replaced, form a cluster
// that knows its clients; the probe of kubelet finds it ready.
func TestChartRuns(t *testing.T) {
	t.Parallel()
	const token = "a/token?of=a+secret%2F@#:" // characters that mean something in a URL
	dir, binary := t.TempDir(), holdfast(t)
	authority, err := certs.New("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	put := func(folder, name string, data []byte) {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, folder), 0o700), os.WriteFile(filepath.Join(dir, folder, name), data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, folder := range []string{"tls", "peers"} {
		pair, err := authority.Issue(certs.Node, "", "127.0.0.1", "x-holdfast.locks.svc", "*.x-holdfast-peers.locks.svc")
		if err != nil {
			t.Fatal(err)
		}
		put(folder, "tls.crt", pair.Cert)
		put(folder, "tls.key", pair.Key)
		put(folder, "ca.crt", authority.PEM())
	}
	put("policy", "policy.yaml", fmt.Appendf(nil, "principals: {admin: {tokens: [%x]}}\ngrants: [{to: [admin], locks: [\"*\"], verbs: [acquire, read, admin]}]", sha256.Sum256([]byte(token))))
	put("init", "token", []byte(token))

	var set, job object
	for _, o := range chart[object](t, secrets()...) {
		switch o.Kind {
		case "StatefulSet":
			set = o
		case "Job":
			job = o
		}
	}
	container := set.Spec.Template.Spec.Containers[0]
	port := func() string { return "127.0.0.1:" + strconv.Itoa(testserver.FreePort(t)) }
	clients, peers := make([]string, set.Spec.Replicas), make([]string, set.Spec.Replicas)
	pairs := []string{"/etc/holdfast", dir}
	for i := range clients {
		clients[i], peers[i] = port(), port()
		name := fmt.Sprintf("x-holdfast-%d.x-holdfast-peers.locks.svc", i)
		pairs = append(pairs, name+":2380", peers[i], name+":7420", clients[i])
	}
	nodes := make([]*testserver.Process, len(clients))
	for i := range nodes {
		r := strings.NewReplacer(append(slices.Clone(pairs), "$(POD_NAME)", fmt.Sprintf("x-holdfast-%d", i), "=:7420", "="+clients[i],
			"0.0.0.0:2380", peers[i], "/var/lib/holdfast", testserver.Dir(t))...)
		var args []string
		for _, arg := range container.Args {
			args = append(args, r.Replace(arg))
		}
		nodes[i] = testserver.Start(t, testserver.Command{Path: binary, Args: args})
	}
	init, r := job.Spec.Template.Spec.Containers[0], strings.NewReplacer(pairs...)
	var env []string
	for _, e := range init.Env {
		env = append(env, e.Name+"="+r.Replace(e.Value))
	}
	as := func(ctx context.Context, args ...string) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, binary, args...)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
	nodes[0].Await(time.Minute, func(ctx context.Context) error { return as(ctx, init.Args...) })
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	probe := container.ReadinessProbe.HTTPGet
	asks := func(ctx context.Context, i int, host string) (int, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+clients[i]+probe.Path, nil)
		if err != nil {
			return 0, err
		}
		req.Host = host
		res, err := transport.RoundTrip(req)
		if err != nil {
			return 0, err
		}
		return res.StatusCode, res.Body.Close()
	}
	for i, node := range nodes {
		for host, want := range map[string]int{
			probe.HTTPHeaders[0].Value:                                 http.StatusOK,
			fmt.Sprintf("x-holdfast-%d.x-holdfast-peers.locks.svc", i): http.StatusOK,
			"evil.example": http.StatusForbidden, "x-holdfast.other.svc": http.StatusForbidden,
		} {
			node.Await(time.Minute, func(ctx context.Context) error {
				if got, err := asks(ctx, i, host); err != nil || got != want {
					return errors.Join(err, fmt.Errorf("host %s: status %d, want %d", host, got, want))
				}
				return nil
			})
		}
	}
	if err := as(t.Context(), "acquire", "n", "--try", "--ttl", "10m"); err != nil {
		t.Error(err)
	}
	env = []string{"HOLDFAST_BACKEND=holdfasts://" + clients[1], "SSL_CERT_FILE=" + filepath.Join(dir, "tls", "ca.crt")}
	if err := as(t.Context(), "acquire", "m", "--try"); err == nil || !strings.Contains(err.Error(), "credentials") {
		t.Errorf("a client without a token: %v", err)
	}
}
