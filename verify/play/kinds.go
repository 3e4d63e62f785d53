//go:build unix

package play

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// kinds returns the clusters that can be started, each with the function that adds its members.
// Every change that a server answered is on its disk, or on those of the majority.
func kinds() map[string]func(context.Context, *cluster) error {
	return map[string]func(context.Context, *cluster) error{
		"redis":     func(_ context.Context, c *cluster) error { return c.redis() },
		"redlock":   func(_ context.Context, c *cluster) error { return c.redlock() },
		"etcd":      func(_ context.Context, c *cluster) error { return c.etcd() },
		"zookeeper": func(_ context.Context, c *cluster) error { return c.zooKeeper() },
		"consul":    func(_ context.Context, c *cluster) error { return c.consul() },
		"postgres":  func(ctx context.Context, c *cluster) error { return c.postgres(ctx, "postgres") },
		"mysql":     func(ctx context.Context, c *cluster) error { return c.mariaDB(ctx, "mysql") },
		// The locks of these two end with their connections: their server is stopped, and does
		// not crash.
		"postgres+advisory": func(ctx context.Context, c *cluster) error { return c.postgres(ctx, "postgres+advisory") },
		"mysql+getlock":     func(ctx context.Context, c *cluster) error { return c.mariaDB(ctx, "mysql+getlock") },
		"kubernetes":        func(_ context.Context, c *cluster) error { return c.kubernetes() },
		"holdfast":          func(_ context.Context, c *cluster) error { return c.holdfast() }, // see nodes.go
	}
}

// redis adds one server. A new Redis grants nothing for as long as the longest lease that may
// be held; here that time is known.
func (c *cluster) redis() error {
	c.shims.jumps = jumpsBack
	addrs, err := c.redises(1)
	c.url = "redis://" + addrs + "?quarantine=5s"
	return err
}

// redlock adds five servers, of which two may be down.
func (c *cluster) redlock() error {
	const nodes = 5
	c.shims.jumps = jumpsBack
	addrs, err := c.redises(nodes)
	c.url = "redlock://" + addrs + "?max_ttl=10s"
	return err
}

func (c *cluster) redises(n int) (string, error) {
	addrs, err := freeAddrs(n)
	for i, addr := range addrs {
		dir, err := c.folder(i)
		if err != nil {
			return "", err
		}
		err = c.add("redis-server", addr, "", "--bind", "127.0.0.1", "--port", port(addr), "--dir", dir,
			"--save", "", "--appendonly", "yes", "--appendfsync", "always")
		if err != nil {
			return "", err
		}
	}
	return strings.Join(addrs, ","), err
}

// etcd adds three members.
func (c *cluster) etcd() error {
	const n = 3
	addrs, err := freeAddrs(2 * n)
	if err != nil {
		return err
	}
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("m%d=http://%s", i, addrs[n+i]))
	}
	for i := range n {
		if err := c.etcdMember(fmt.Sprintf("m%d", i), addrs[i], addrs[n+i], strings.Join(all, ",")); err != nil {
			return err
		}
	}
	c.url = "etcd://" + strings.Join(addrs[:n], ",")
	return nil
}

func (c *cluster) etcdMember(name, addr, peer, all string) error {
	client, peers := "http://"+addr, "http://"+peer
	return c.add("etcd", addr, "etcd://"+addr, "--name", name, "--data-dir", filepath.Join(c.dir, name),
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peers,
		"--initial-advertise-peer-urls", peers, "--initial-cluster", all, "--log-level", "error")
}

// zooKeeper adds three servers with short ticks, which sessions of a few seconds need.
func (c *cluster) zooKeeper() error {
	const n = 3
	jar, other := "/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar"
	if _, err := os.Stat(jar); err != nil {
		return fmt.Errorf("verify: ZooKeeper is not installed, as by Debian's package zookeeper: %w", err)
	}
	addrs, err := freeAddrs(3 * n)
	if err != nil {
		return err
	}
	var peers strings.Builder
	for i := range n {
		fmt.Fprintf(&peers, "server.%d=%s:%s\n", i+1, addrs[n+i], port(addrs[2*n+i]))
	}
	for i := range n {
		dir, err := c.folder(i)
		if err != nil {
			return err
		}
		settings, err := c.file(fmt.Sprintf("zoo%d.cfg", i), fmt.Sprintf("tickTime=500\ninitLimit=40\nsyncLimit=10\nmaxSessionTimeout=60000\n"+
			"dataDir=%s\nclientPort=%s\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n%s", dir, port(addrs[i]), &peers))
		if err != nil {
			return err
		}
		if _, err := c.file(fmt.Sprintf("m%d/myid", i+1), strconv.Itoa(i+1)); err != nil {
			return err
		}
		err = c.add("java", addrs[i], "zookeeper://"+addrs[i]+"?tick=500ms", "-Xmx192m", "-Xms32m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
			"-cp", jar+":"+other, "org.apache.zookeeper.server.quorum.QuorumPeerMain", settings)
		if err != nil {
			return err
		}
	}
	c.shims.jumps = jumpsFar
	c.url = "zookeeper://" + strings.Join(addrs[:n], ",") + "?tick=500ms"
	return nil
}

// consul adds three servers; the clients use the first, like an agent of their host.
func (c *cluster) consul() error {
	const n = 3
	addrs, err := freeAddrs(3 * n)
	if err != nil {
		return err
	}
	const shortest, parameters = "500ms", "?min_ttl=500ms"
	for i := range n {
		dir, err := c.folder(i)
		if err != nil {
			return err
		}
		ports := make([]int, 3)
		for k := range ports {
			if ports[k], err = strconv.Atoi(port(addrs[k*n+i])); err != nil {
				return err //nolint:wrapcheck // a port that the kernel gave
			}
		}
		const off = -1
		text, err := json.Marshal(map[string]any{
			"node_name": "n" + strconv.Itoa(i), "server": true, "bootstrap_expect": n, "data_dir": dir,
			"bind_addr": "127.0.0.1", "client_addr": "127.0.0.1", "disable_update_check": true, "disable_host_node_id": true,
			"connect": map[string]any{"enabled": false}, "session_ttl_min": shortest,
			"ports":      map[string]any{"http": ports[0], "server": ports[1], "serf_lan": ports[2], "serf_wan": off, "dns": off, "grpc": off},
			"retry_join": addrs[2*n:], "retry_interval": "200ms", "performance": map[string]any{"raft_multiplier": 1},
			"limits": map[string]any{"http_max_conns_per_client": 10000},
		})
		if err != nil {
			return fmt.Errorf("verify: settings of consul: %w", err)
		}
		settings, err := c.file(fmt.Sprintf("consul%d.json", i), string(text))
		if err != nil {
			return err
		}
		if err := c.add("consul", addrs[i], "consul://"+addrs[i]+parameters, "agent", "-config-file", settings, "-log-level", "warn"); err != nil {
			return err
		}
	}
	c.url = "consul://" + addrs[0] + parameters
	return nil
}

// postgres adds one server, for one of its backends.
func (c *cluster) postgres(ctx context.Context, scheme string) error {
	c.account, c.shims.jumps = "postgres", jumpsBack
	addrs, err := freeAddrs(1)
	if err != nil {
		return err
	}
	data := filepath.Join(c.dir, "data")
	if err := c.once(ctx, "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C"); err != nil {
		return err
	}
	c.url = scheme + "://postgres@" + addrs[0] + "/postgres?sslmode=disable"
	return c.add("postgres", addrs[0], c.url, "-D", data, "-p", port(addrs[0]), "-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories="+c.dir, "-c", "max_connections=300", "-c", "shared_buffers=32MB")
}

// mariaDB adds one server, for one of its backends.
func (c *cluster) mariaDB(ctx context.Context, scheme string) error {
	c.account, c.shims.jumps = "mysql", jumpsBack
	if scheme == "mysql+getlock" {
		c.shims.jumps = jumpsFar
	}
	addrs, err := freeAddrs(1)
	if err != nil {
		return err
	}
	data := filepath.Join(c.dir, "data")
	err = c.once(ctx, "mariadb-install-db", "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db",
		"--tmpdir="+c.dir, "--innodb-log-file-size=8M", "--innodb-flush-method=fsync")
	if err != nil {
		return err
	}
	first, err := c.file("init.sql", "CREATE DATABASE IF NOT EXISTS holdfast;\n")
	if err != nil {
		return err
	}
	c.url = scheme + "://root@" + addrs[0] + "/holdfast"
	return c.add("mariadbd", addrs[0], c.url, "--no-defaults", "--datadir="+data, "--port="+port(addrs[0]), "--bind-address=127.0.0.1",
		"--tmpdir="+c.dir, "--socket="+filepath.Join(c.dir, "s.sock"), "--pid-file="+filepath.Join(c.dir, "pid"), "--skip-name-resolve",
		"--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M", "--max-connections=300", "--init-file="+first)
}

// kubernetes adds an API server and the etcd that stores its data; there are no nodes.
func (c *cluster) kubernetes() error {
	addrs, err := freeAddrs(3)
	if err != nil {
		return err
	}
	if err := c.etcdMember("store", addrs[1], addrs[2], "store=http://"+addrs[2]); err != nil {
		return err
	}
	const bits = 2048
	private, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		return fmt.Errorf("verify: a key of kube-apiserver: %w", err)
	}
	token, certs := rand.Text(), filepath.Join(c.dir, "certs")
	key, err1 := c.file("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(private)})))
	tokens, err2 := c.file("tokens.csv", token+",admin,admin,system:masters\n")
	settings, err3 := c.file("kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: verify
contexts:
- name: verify
  context: {cluster: verify, user: admin, namespace: default}
clusters:
- name: verify
  cluster: {server: "https://%s", certificate-authority: %q}
users:
- name: admin
  user: {token: %q}
`, addrs[0], filepath.Join(certs, "apiserver.crt"), token))
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	c.url = "kubernetes://default?kubeconfig=" + settings
	err = c.add("kube-apiserver", addrs[0], c.url, "--etcd-servers=http://"+addrs[1], "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		"--secure-port="+port(addrs[0]), "--cert-dir="+certs, "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+key, "--service-account-signing-key-file="+key, "--service-cluster-ip-range=10.0.0.0/24",
		"--authorization-mode=RBAC", "--token-auth-file="+tokens, "--endpoint-reconciler-type=none")
	if err == nil {
		c.members[1].diskless = true
	}
	return err
}
