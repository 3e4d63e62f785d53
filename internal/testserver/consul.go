//go:build unix

package testserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// ConsulMinTTL is the least TTL of a session on the servers of this package.
const ConsulMinTTL = 500 * time.Millisecond

// ConsulServer is a Consul server of its own: alone, or one of a cluster. The methods
// fail the test when they fail; they belong to the test's goroutine.
type ConsulServer struct {
	ownDisk

	t      testing.TB
	binary string
	dir    string
	port   int
	token  string // of ACLs; empty: there are none
	serf   string // the address at which servers join the cluster
	proc   *Process
}

// ConsulConnections is the number of connections that a Consul server takes from one address
// unless it is configured otherwise.
const ConsulConnections = 200

// StartConsul starts a cluster of n servers; 1 is one that stands alone. They end with the
// test. They take many connections from one address, as if each client had its own address.
func StartConsul(t testing.TB, n int) []*ConsulServer {
	t.Helper()
	const many = 10000
	return startConsul(t, n, many, "")
}

// StartConsulTight starts a server that takes no more than ConsulConnections from one
// address.
func StartConsulTight(t testing.TB) *ConsulServer {
	t.Helper()
	return startConsul(t, 1, ConsulConnections, "")[0]
}

// StartConsulACL starts a server where only clients with the token, which is a UUID, may do
// anything.
func StartConsulACL(t testing.TB, token string) *ConsulServer {
	t.Helper()
	return startConsul(t, 1, ConsulConnections, token)[0]
}

func startConsul(t testing.TB, n, connections int, token string) []*ConsulServer {
	t.Helper()
	binary := Tool(t, "consul")
	servers := make([]*ConsulServer, n)
	serf := make([]string, n)
	for i := range n {
		servers[i] = &ConsulServer{t: t, binary: binary, dir: Dir(t), port: FreePort(t), token: token}
		serf[i] = "127.0.0.1:" + strconv.Itoa(FreePort(t))
	}
	for i, s := range servers {
		s.configure(i, serf, connections)
		s.launch()
	}
	for _, s := range servers {
		s.proc.Await(startTimeout, s.ours)
	}
	return servers
}

// Tool is the path of a program that scripts/tool builds: "consul", "kube-apiserver".
func Tool(t testing.TB, name string) string {
	t.Helper()
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		t.Fatal("testserver: where is the source?")
	}
	script := filepath.Join(filepath.Dir(file), "..", "..", "scripts", "tool")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, script, name) //nolint:gosec // a script of the repository
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("testserver: build %s: %v", name, err)
	}
	return strings.TrimSpace(string(out))
}

func (s *ConsulServer) configure(i int, serf []string, connections int) {
	s.t.Helper()
	s.serf = serf[i]
	_, own, _ := strings.Cut(serf[i], ":")
	port, err := strconv.Atoi(own)
	if err != nil {
		s.t.Fatalf("testserver: consul: %v", err)
	}
	const off = -1
	acl := map[string]any{
		"enabled": s.token != "", "default_policy": "deny",
		"tokens": map[string]string{"initial_management": s.token, "agent": s.token},
	}
	config, err := json.Marshal(map[string]any{
		"acl":       acl,
		"node_name": "n" + strconv.Itoa(i), "server": true, "bootstrap_expect": len(serf), "data_dir": filepath.Join(s.dir, "data"),
		"bind_addr": "127.0.0.1", "client_addr": "127.0.0.1", "disable_update_check": true, "disable_host_node_id": true,
		"connect": map[string]any{"enabled": false}, "session_ttl_min": ConsulMinTTL.String(),
		"ports":      map[string]any{"http": s.port, "server": FreePort(s.t), "serf_lan": port, "serf_wan": off, "dns": off, "grpc": off},
		"retry_join": serf, "retry_interval": "200ms", "performance": map[string]any{"raft_multiplier": 1},
		"limits": map[string]any{"http_max_conns_per_client": connections},
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(s.dir, "config.json"), config, 0o600)
	}
	if err != nil {
		s.t.Fatalf("testserver: consul: %v", err)
	}
}

// Agent starts a client agent in the cluster of the server, as each machine has one in a
// recommended Consul deployment. It leaves the cluster when its process is terminated.
func (s *ConsulServer) Agent() *ConsulServer {
	s.t.Helper()
	a := &ConsulServer{t: s.t, binary: s.binary, dir: Dir(s.t), port: FreePort(s.t)}
	config, err := json.Marshal(map[string]any{
		"node_name": "agent" + strconv.Itoa(a.port), "data_dir": filepath.Join(a.dir, "data"), "bind_addr": "127.0.0.1", "client_addr": "127.0.0.1",
		"disable_update_check": true, "disable_host_node_id": true, "connect": map[string]any{"enabled": false},
		"ports":      map[string]any{"http": a.port, "server": FreePort(s.t), "serf_lan": FreePort(s.t), "serf_wan": -1, "dns": -1, "grpc": -1},
		"retry_join": []string{s.serf}, "retry_interval": "200ms",
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(a.dir, "config.json"), config, 0o600)
	}
	if err != nil {
		s.t.Fatalf("testserver: consul: %v", err)
	}
	a.launch()
	a.proc.Await(startTimeout, a.ours)
	return a
}

func (s *ConsulServer) launch() {
	s.t.Helper()
	args := []string{"agent", "-config-file", filepath.Join(s.dir, "config.json"), "-log-level", "warn"}
	s.proc = Start(s.t, Command{Path: s.binary, Dir: s.dir, Args: args, Disk: s.disk})
}

// Addr is the address for clients, "127.0.0.1:port".
func (s *ConsulServer) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Process is the current run, to be killed, stopped and continued.
func (s *ConsulServer) Process() *Process { return s.proc }

// Kill kills the server with SIGKILL. Start starts it again.
func (s *ConsulServer) Kill() {
	s.t.Helper()
	s.proc.Kill()
}

// Start starts a server that was killed again, with its data.
func (s *ConsulServer) Start() {
	s.t.Helper()
	s.launch()
	s.proc.Await(startTimeout, s.ours)
}

// Restart kills the server with SIGKILL and starts it again, with its data.
func (s *ConsulServer) Restart() {
	s.t.Helper()
	s.Kill()
	s.Start()
}

// Leads reports whether the server is the leader of its cluster.
func (s *ConsulServer) Leads() bool {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), startTimeout)
	defer cancel()
	text, err := s.call(ctx, http.MethodGet, "/v1/agent/self", "")
	return err == nil && strings.Contains(text, `"leader":"true"`)
}

func (s *ConsulServer) call(ctx context.Context, method, path, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.Addr()+path, strings.NewReader(body))
	if err != nil {
		return "", fmt.Errorf("make the request: %w", err)
	}
	if s.token != "" {
		req.Header.Set("X-Consul-Token", s.token)
	}
	req.Close = true // no connection stays behind
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return "", fmt.Errorf("read the answer: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", res.Status, text)
	}
	return string(text), nil
}

// ours reports whether the server that was started serves: a leader writes for it.
func (s *ConsulServer) ours(ctx context.Context) error {
	self, err := s.call(ctx, http.MethodGet, "/v1/agent/self", "")
	if err != nil {
		return err
	}
	if !strings.Contains(self, s.dir) {
		return errors.New("another server answers")
	}
	text, err := s.call(ctx, http.MethodPut, "/v1/session/create", `{"TTL":"10s","Behavior":"delete"}`)
	if err != nil {
		return err
	}
	var session struct{ ID string }
	if err := json.Unmarshal([]byte(text), &session); err != nil {
		return fmt.Errorf("read the session: %w", err)
	}
	_, err = s.call(ctx, http.MethodPut, "/v1/session/destroy/"+session.ID, "")
	return err
}

func (s *ConsulServer) again() { s.Restart() }
