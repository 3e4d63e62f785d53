//go:build unix

package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ConsulMinTTL is the shortest TTL of a session on the servers.
const ConsulMinTTL = 500 * time.Millisecond

// ConsulOptions say how Consul is started.
type ConsulOptions struct {
	Options

	// Connections is how many connections a server accepts from one address. Default: many, as if each
	// client had an address of its own.
	Connections int
	// Token is a UUID: only clients that send it may do anything. Default: all may.
	Token string
}

// consulPorts are the addresses of one agent: for clients, for servers, and for the gossip of all.
type consulPorts struct{ http, server, gossip string }

func (p consulPorts) object() map[string]int {
	number := func(addr string) int {
		n, _ := strconv.Atoi(Port(addr)) // a port that the kernel gave
		return n
	}
	const off = -1
	return map[string]int{
		"http": number(p.http), "server": number(p.server), "serf_lan": number(p.gossip), "serf_wan": off, "dns": off, "grpc": off,
	}
}

// Consul returns the servers of a cluster, which have to be launched together, and the addresses at
// which agents join them.
func Consul(o ConsulOptions) ([]*Server, []string, error) {
	n := max(1, o.Members)
	servers, ports, join := make([]*Server, n), make([]consulPorts, n), make([]string, n)
	for i := range servers {
		s, p, err := o.agent(fmt.Sprintf("m%d", i+1))
		if err != nil {
			return nil, nil, err
		}
		servers[i], ports[i], join[i] = s, p, p.gossip
	}
	const many = 10000
	for i, s := range servers {
		connections := o.Connections
		if connections == 0 {
			connections = many
		}
		err := configure(s, map[string]any{
			"node_name": "n" + strconv.Itoa(i), "server": true, "bootstrap_expect": n, "session_ttl_min": ConsulMinTTL.String(),
			"ports": ports[i].object(), "retry_join": join, "performance": map[string]any{"raft_multiplier": 1},
			"limits": map[string]any{"http_max_conns_per_client": connections},
			"acl": map[string]any{
				"enabled": o.Token != "", "default_policy": "deny",
				"tokens": map[string]string{"initial_management": o.Token, "agent": o.Token},
			},
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return servers, join, nil
}

// ConsulAgent returns a client agent of a cluster, as each machine has one in a recommended
// deployment. It leaves the cluster when it is asked to end.
func ConsulAgent(o ConsulOptions, join []string) (*Server, error) {
	s, ports, err := o.agent("")
	if err != nil {
		return nil, err
	}
	return s, configure(s, map[string]any{"node_name": "agent" + Port(s.addr), "ports": ports.object(), "retry_join": join})
}

// agent returns an agent that has to be configured.
func (o ConsulOptions) agent(folder string) (*Server, consulPorts, error) {
	s, err := o.server("consul", folder, "")
	if err != nil {
		return nil, consulPorts{}, err
	}
	server, err := FreeAddr()
	if err != nil {
		return nil, consulPorts{}, err
	}
	gossip, err := FreeAddr()
	s.URL, s.Secret = "consul://"+s.addr, o.Token
	s.command.Argv = slices.Concat(s.command.Argv, []string{"agent", "-config-file", s.Path("config.json"), "-log-level", "warn"}, o.Args)
	s.ready = func(ctx context.Context, _ *Process) error { return consulServes(ctx, s) }
	return s, consulPorts{s.addr, server, gossip}, err
}

// configure writes the file of an agent.
func configure(s *Server, settings map[string]any) error {
	maps.Copy(settings, map[string]any{
		"data_dir": s.Path("data"), "bind_addr": "127.0.0.1", "client_addr": "127.0.0.1", "disable_update_check": true, "disable_host_node_id": true,
		"connect": map[string]any{"enabled": false}, "retry_interval": "200ms",
	})
	text, err := json.Marshal(settings)
	if err != nil {
		return fmt.Errorf("settings of consul: %w", err)
	}
	return s.write(map[string]string{"config.json": string(text)})
}

// ConsulCall sends a request to an agent, and returns the body of the answer.
func ConsulCall(ctx context.Context, s *Server, method, path, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.addr+path, strings.NewReader(body))
	if err != nil {
		return "", fmt.Errorf("make the request: %w", err)
	}
	if s.Secret != "" {
		req.Header.Set("X-Consul-Token", s.Secret)
	}
	return call(http.DefaultTransport, req)
}

// call sends a request on a connection of its own, and returns the body of the answer.
func call(by http.RoundTripper, req *http.Request) (string, error) {
	req.Close = true // no connection stays behind
	res, err := (&http.Client{Transport: by}).Do(req)
	if err != nil {
		return "", fmt.Errorf("ask: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return "", fmt.Errorf("read the answer: %w", err)
	}
	if res.StatusCode >= http.StatusMultipleChoices {
		return "", fmt.Errorf("%s: %s", res.Status, text) //nolint:err113 // the text of the server
	}
	return string(text), nil
}

// consulServes returns nil if the agent is the one that was started, and a leader writes for it.
func consulServes(ctx context.Context, s *Server) error {
	self, err := ConsulCall(ctx, s, http.MethodGet, "/v1/agent/self", "")
	if err != nil {
		return err
	}
	if !strings.Contains(self, s.Dir()) {
		return errOther
	}
	text, err := ConsulCall(ctx, s, http.MethodPut, "/v1/session/create", `{"TTL":"10s","Behavior":"delete"}`)
	if err != nil {
		return err
	}
	var session struct{ ID string }
	if err := json.Unmarshal([]byte(text), &session); err != nil {
		return fmt.Errorf("read the session: %w", err)
	}
	_, err = ConsulCall(ctx, s, http.MethodPut, "/v1/session/destroy/"+session.ID, "")
	return err
}
