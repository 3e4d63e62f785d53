//go:build unix

package launch

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// EtcdOptions say how an etcd is started.
type EtcdOptions struct {
	Options

	// Tick is the heartbeat in milliseconds; an election takes ten of them, and leases live for 15 or
	// more, rounded up to seconds. Default: etcd's own.
	Tick int
	// Admin connects to it. It may change between two starts. Optional.
	Admin *EtcdAdmin
	// Reach returns the address by which the other members reach the member that listens at an
	// address: that of a proxy in between. Optional.
	Reach func(listens string) string
}

// EtcdAdmin is how to connect to an etcd, but for its address.
type EtcdAdmin struct {
	// TLS is for an etcd whose Args make it speak TLS only. Nil: it does not.
	TLS *tls.Config
	// User and Password are for an etcd that authenticates its clients. Empty: it does not.
	User, Password string
}

// Etcd returns the members of a cluster. They have to be launched together: one does not serve
// alone.
func Etcd(o EtcdOptions) ([]*Server, error) {
	n := max(1, o.Members)
	cluster := strings.ToLower(rand.Text()[:8]) // so that no member is taken for another one's
	members, urls, peers := make([]*Server, n), make([]string, n), make([]string, n)
	for i := range members {
		var err error
		if members[i], err = o.server("etcd", fmt.Sprintf("m%d", i+1), ""); err != nil {
			return nil, err
		}
		peer, err := FreeAddr()
		if err != nil {
			return nil, err
		}
		reached := peer
		if o.Reach != nil {
			reached = o.Reach(peer)
		}
		urls[i] = "http://" + peer
		peers[i] = fmt.Sprintf("%s-%d=http://%s", cluster, i, reached)
	}
	for i, s := range members {
		o.member(s, urls[i], peers, i)
	}
	return members, nil
}

// member completes a member of a cluster.
func (o EtcdOptions) member(s *Server, listens string, peers []string, i int) {
	name, advertised, _ := strings.Cut(peers[i], "=")
	if o.Admin == nil {
		o.Admin = new(EtcdAdmin)
	}
	client := o.Admin.url(s.addr)
	args := []string{
		"--name", name, "--data-dir", s.Path("data"), "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", listens, "--initial-advertise-peer-urls", advertised, "--initial-cluster", strings.Join(peers, ","),
		"--bcrypt-cost", "4", // the least: a client opens many connections
		"--logger", "zap", "--log-level", "fatal", "--log-outputs", "stderr",
	}
	if o.Tick > 0 {
		args = append(args, "--heartbeat-interval", strconv.Itoa(o.Tick), "--election-timeout", strconv.Itoa(10*o.Tick))
	}
	s.command.Argv, s.URL = slices.Concat(s.command.Argv, args, o.Args), "etcd://"+s.addr
	s.ready = func(ctx context.Context, _ *Process) error { return o.Admin.serves(ctx, s.addr, name) }
}

func (a *EtcdAdmin) url(addr string) string {
	if a.TLS != nil {
		return "https://" + addr
	}
	return "http://" + addr
}

// EtcdStatus is what a member says of itself, with IDs as its JSON gateway writes them.
type EtcdStatus struct {
	// Header names the member.
	Header struct {
		Member string `json:"member_id"`
	} `json:"header"`
	// Leader is the member that it follows; its own ID: it leads.
	Leader string `json:"leader"`
}

// Status returns the status of the member at an address.
func (a *EtcdAdmin) Status(ctx context.Context, addr string) (EtcdStatus, error) {
	var status EtcdStatus
	err := a.Do(ctx, addr, "maintenance/status", nil, &status)
	return status, err
}

// serves returns nil if the one endpoint answers a linearizable read, and is the member with the
// name, which is random.
func (a *EtcdAdmin) serves(ctx context.Context, addr, name string) error {
	self, err := a.Status(ctx, addr)
	if err != nil {
		return err
	}
	var list struct {
		Members []struct {
			ID   string `json:"ID"`
			Name string `json:"name"`
		} `json:"members"`
	}
	if err := a.Do(ctx, addr, "cluster/member/list", nil, &list); err != nil {
		return err
	}
	for _, m := range list.Members {
		if m.ID == self.Header.Member && m.Name == name {
			return a.Do(ctx, addr, "kv/range", map[string]any{"key": []byte("ready")}, nil)
		}
	}
	return errOther
}

// Do sends a call of etcd's API, such as "kv/range", to its JSON gateway. in is the request, nil for
// one without fields; the answer is put into out, unless that is nil.
func (a *EtcdAdmin) Do(ctx context.Context, addr, call string, in map[string]any, out any) error {
	var token struct {
		Token string `json:"token"`
	}
	if a.User != "" {
		err := a.post(ctx, addr, "auth/authenticate", "", map[string]any{"name": a.User, "password": a.Password}, &token)
		if err != nil {
			return err
		}
	}
	return a.post(ctx, addr, call, token.Token, in, out)
}

func (a *EtcdAdmin) post(ctx context.Context, addr, call, token string, in map[string]any, out any) error {
	if in == nil {
		in = map[string]any{} // null is no request
	}
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url(addr)+"/v3/"+call, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	if token != "" {
		req.Header.Set("Authorization", token)
	}
	resp, err := (&http.Transport{TLSClientConfig: a.TLS, DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	answer, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.300s", resp.Status, answer) //nolint:err113 // for people
	}
	if err == nil && out != nil {
		err = json.Unmarshal(answer, out)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	return nil
}
