package nightly_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/certs"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// patience bounds a wait for a server.
const patience = 2 * time.Minute

// manual is docs/operations.md with what its tests have run. A comment before each block names it:
//
//	<!-- run: NAME -->   a block of sh, which a test runs
//	<!-- file: NAME -->  a block of yaml, which a test gives to the program that reads it
type manual struct {
	t      *testing.T
	blocks map[string]string
	used   map[string]bool

	dir    string // the working folder
	system string // what packages are installed into
	bin    string // the folder of the programs
	prefix string // commands before those of each block
	pairs  []string
}

// blocksOf returns the blocks of the page, by their names.
func blocksOf(page string) (map[string]string, error) {
	var faults []error
	blocks := make(map[string]string)
	for _, b := range regexp.MustCompile("(?ms)(?:^<!-- (run|file): ([^\n]+) -->\n)?^```(\\w*)\n(.*?)^```").FindAllStringSubmatch(page, -1) {
		want := map[string]string{"run": "sh", "file": "yaml"}[b[1]]
		if want == "" || b[3] != want || blocks[b[2]] != "" {
			faults = append(faults, fmt.Errorf("a block has no name, or that of another one: %q %q\n%s", b[1], b[2], b[4]))
		}
		blocks[b[2]] = b[4]
	}
	if len(blocks) < 15 {
		faults = append(faults, fmt.Errorf("only %d blocks were found", len(blocks)))
	}
	return blocks, errors.Join(faults...)
}

// openManual reads the page. The commands of a block are found in a folder of the test, where some stand for
// programs that a test cannot run: docker, kubectl, systemctl, apt.
func openManual(t *testing.T) *manual {
	t.Helper()
	blocks, err := blocksOf(read(t, "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	m := &manual{t: t, blocks: blocks, used: make(map[string]bool), dir: testserver.Dir(t)}
	m.system, m.bin = m.at("system"), m.at("bin")
	for _, dir := range []string{m.system, m.bin} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	unit := `test -f "$SYSTEM/usr/lib/systemd/system/holdfast.service"`
	for name, script := range map[string]string{
		"sudo":       `exec "$@"`,
		"apt":        `test "$1" = install && dpkg-deb -x "$2" "$SYSTEM" && ln -sf "$SYSTEM/usr/bin/holdfast" "$BIN/holdfast"`,
		"systemctl":  `test "$*" = "enable --now holdfast" && ` + unit,
		"journalctl": `test "$*" = "-u holdfast" && ` + unit,
		"docker": `case "$1" in
compose) test "$2" = -f && test -f "$3" && test "$4" = up;;
build) test "$2" = -f && test -f "$3";;
run) ;;
*) false;;
esac`,
		"kubectl": `for a; do case "$a" in --from-file=*) test -f "${a##*=}" || exit 1;; esac; done`,
		"helm":    `test "$1" = install && shift && exec "` + testserver.Tool(t, "helm") + `" template "$@"`,
	} {
		if err := os.WriteFile(filepath.Join(m.bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	m.former()
	return m
}

// former makes the command the one that was not installed from a package.
func (m *manual) former() {
	m.t.Helper()
	m.command(holdfast(m.t))
}

// command makes a program the command.
func (m *manual) command(program string) {
	m.t.Helper()
	command := filepath.Join(m.bin, "holdfast")
	_ = os.Remove(command)
	if err := os.Symlink(program, command); err != nil {
		m.t.Fatal(err)
	}
}

func (m *manual) at(name string) string { return filepath.Join(m.dir, name) }

// block returns a block, with the addresses and folders of the test.
func (m *manual) block(name string) string {
	m.t.Helper()
	text, ok := m.blocks[name]
	if !ok {
		m.t.Fatalf("the page has no block %q", name)
	}
	m.used[name] = true
	return m.prefix + strings.NewReplacer(m.pairs...).Replace(text)
}

// file writes a block to the working folder.
func (m *manual) file(name string) {
	m.t.Helper()
	if err := os.WriteFile(m.at(name), []byte(m.block(name)), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// environ are the variables of the commands.
func (m *manual) environ() []string {
	return []string{"PATH=" + m.bin + ":" + os.Getenv("PATH"), "SYSTEM=" + m.system, "BIN=" + m.bin, "XDG_STATE_HOME=" + m.at("state")}
}

// shell runs commands, and returns what they print.
func (m *manual) shell(dir, text string) (string, error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-euc", text)
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, append(os.Environ(), m.environ()...), 10*time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, out)
	}
	return string(out), err
}

// steadily is shell, and runs the commands again where the store had no answer, because the disk stood still.
func (m *manual) steadily(dir, text string) (string, error) {
	const tries = 5
	for n := 1; ; n++ {
		out, err := m.shell(dir, text)
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 74 || n == tries {
			return out, err
		}
	}
}

// run runs a block, which has to succeed and print the texts.
func (m *manual) run(name string, says ...string) {
	m.t.Helper()
	m.runIn(m.dir, name, says...)
}

func (m *manual) runIn(dir, name string, says ...string) {
	m.t.Helper()
	out, err := m.steadily(dir, m.block(name))
	if err != nil {
		m.t.Fatalf("%s: %v", name, err)
	}
	for _, text := range says {
		if !strings.Contains(out, text) {
			m.t.Errorf("%s does not print %q:\n%s", name, text, out)
		}
	}
}

// start runs a block that ends with a server. The server takes the place of the shell, so that it gets the signals.
func (m *manual) start(name string, env ...string) *testserver.Process {
	m.t.Helper()
	text := regexp.MustCompile(`(?m)^(holdfast serve|etcd) `).ReplaceAllString(m.block(name), "exec $1 ")
	return testserver.Start(m.t, testserver.Command{Path: "sh", Args: []string{"-euc", text}, Dir: m.dir, Env: append(m.environ(), env...)})
}

// Every command of docs/operations.md works, in the order of the page. A command that no test runs is an error.
func TestOperations(t *testing.T) {
	t.Parallel()
	needs(t, "dpkg-deb")
	m := openManual(t)
	m.firstServer()
	m.files()
	m.installed()
	m.several()
	for name := range maps.Keys(m.blocks) {
		if !m.used[name] {
			t.Errorf("no test runs the block %q", name)
		}
	}
}

// firstServer runs the section about mutual TLS.
func (m *manual) firstServer() {
	t := m.t
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	server := m.start("first", "HOLDFAST_SERVE_LISTEN="+addr)
	m.pairs = []string{"localhost:7420", "localhost" + strings.TrimPrefix(addr, "127.0.0.1")}
	m.await(server, "first client")
	m.run("first client", "done")
	if out, err := m.shell(m.dir, strings.ReplaceAll(m.block("first client"), "&cert=certs/client.pem&key=certs/client.key", "")); err == nil {
		t.Errorf("without a certificate: %s", out)
	}
	m.run("second client", `"billing": {certificates: ["billing"]}`)
	server.Terminate()
}

// files gives the files of the page to the programs that read them.
func (m *manual) files() {
	m.file("policy.yaml")
	m.run("policy", "3 principals", "grant 1 allows billing")
	m.run("prometheus client", `"prometheus"`)
	m.file("prometheus.yaml")
	rules := read(m.t, "deploy", "prometheus", "rules.yaml")
	if err := os.WriteFile(m.at("rules.yaml"), []byte(rules), 0o600); err != nil {
		m.t.Fatal(err)
	}
	must(m.t, testserver.Tool(m.t, "promtool"), "check", "config", m.at("prometheus.yaml"))
}

// installed runs the sections about one machine and containers. The programs that a test cannot run only check that the files
// which they get exist.
func (m *manual) installed() {
	t := m.t
	root := file(t)
	addr, data := m.node()
	m.pairs = []string{
		"-o bin/", "-o " + m.bin + "/deb-", "BINARY=bin/", "BINARY=" + m.bin + "/deb-", "--target bin", "--target " + m.dir, "./bin/", m.dir + "/",
		"amd64", runtime.GOARCH, "127.0.0.1:7421", addr, "127.0.0.1:7422", addr,
		"deploy/helm", filepath.Join(root, "deploy", "helm"), "/var/lib/holdfast/serve", data, "/var/backups", m.dir,
	}
	m.runIn(root, "package")
	m.runIn(root, "service")
	m.run("backup")
	if copied := must(t, "sqlite3", m.at("holdfast.db"), "PRAGMA integrity_check"); copied != "ok\n" {
		t.Errorf("the backup: %s", copied)
	}
	m.runIn(root, "image")
	m.runIn(root, "compose")
	if err := os.WriteFile(m.at("url"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m.run("chart", "kind: Deployment")
	m.former()
}

// node starts a server that keeps its locks in a file, and returns its address and its folder.
func (m *manual) node() (string, string) {
	m.t.Helper()
	addr, data := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(m.t)), m.at("node")
	p := testserver.Start(m.t, testserver.Command{Path: holdfast(m.t), Args: []string{"serve", "--listen", addr, "--data-dir", data}})
	p.Await(patience, func(ctx context.Context) error {
		_, err := get(ctx, "http://"+addr+"/readyz")
		return err
	})
	return addr, data
}

// await repeats a block until it succeeds.
func (m *manual) await(p *testserver.Process, name string) {
	m.t.Helper()
	text := m.block(name)
	p.Await(patience, func(context.Context) error { _, err := m.shell(m.dir, text); return err })
}

// site has the servers and the etcd of the page, each on a host of its own.
type site struct {
	*manual

	clients, store, peers map[string]string // addresses, by host
	servers               map[string]*testserver.Process
}

// on makes the commands those of a host. All hosts have the folder of the certificates.
func (s *site) on(host string) *site {
	s.pairs = []string{
		"--name a", "--name " + host, "0.0.0.0:2380", s.peers[host], "0.0.0.0:2379", s.store[host], "--listen :7420", "--listen " + s.clients[host],
		"https://a.example:2380 --listen", "https://" + s.peers[host] + " --listen", "https://a.example:2379", "https://" + s.store[host],
		"etcds://a.example,b.example,c.example", "etcds://" + s.store["a"] + "," + s.store["b"] + "," + s.store["c"],
	}
	for name := range s.peers {
		s.pairs = append(s.pairs, "--host "+name+".example", "--host 127.0.0.1", name+".example:2380", s.peers[name], name+".example", s.clients[name])
	}
	s.pairs = append(s.pairs, "sudo install -d -o root -g holdfast", "install -d", "sudo install -o root -g holdfast", "install", "/var/lib/etcd", s.at("etcd-"+host), "/etc/holdfast", s.at("etc"), "amd64", runtime.GOARCH)
	return s
}

// several runs the sections about several servers, their upgrade and their certificates. What is held stays held.
func (m *manual) several() {
	t := m.t
	s := &site{m, make(map[string]string), make(map[string]string), make(map[string]string), make(map[string]*testserver.Process)}
	for _, host := range []string{"a", "b", "c"} {
		for _, addrs := range []map[string]string{s.clients, s.store, s.peers} {
			addrs[host] = fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
		}
	}
	authority, err := certs.New("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(certs.Node, "", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"ca.pem": authority.PEM(), "node.pem": pair.Cert, "node.key": pair.Key} {
		path := s.at(filepath.Join("etc", "etcd", name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	etcd := make(map[string]*testserver.Process)
	for host := range s.store {
		etcd[host] = s.on(host).start("etcd")
	}
	s.run("certificates")
	for _, host := range []string{"a", "b"} {
		s.servers[host] = s.on(host).start("serve")
	}
	s.on("a")
	s.prefix = s.block("client")
	s.servers["a"].Await(patience, func(context.Context) error {
		_, err := s.shell(s.dir, s.prefix+"holdfast acquire kept --ttl 1h --lease lease-of-the-test-0001")
		return err
	})
	s.held()

	etcd["c"].Kill()
	s.servers["a"].Kill()
	s.held()
	s.servers["a"] = s.on("a").start("serve")
	s.held()
	if _, err := s.steadily(s.dir, s.prefix+"holdfast acquire orders/eu --ttl 1h --lease lease-of-the-test-0002"); err != nil {
		t.Fatal(err)
	}
	s.run("break", "orders/eu: 1 lost it")
	s.rotated()
	s.upgraded()
}

// held checks that the lock that was acquired first is still held.
func (s *site) held() {
	s.t.Helper()
	s.servers["b"].Await(patience, func(context.Context) error {
		_, err := s.shell(s.dir, s.prefix+"holdfast acquire kept --try --ttl 1m")
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 75 {
			return fmt.Errorf("the lock is held, and acquire says %w", err)
		}
		return nil
	})
}

// rotated replaces the certificate of the servers, which they read again.
func (s *site) rotated() {
	before := s.shown("a")
	s.run("rotate")
	s.servers["a"].Await(patience, func(context.Context) error {
		if bytes.Equal(s.shown("a"), before) {
			return errors.New("the former certificate is shown")
		}
		return nil
	})
	s.held()
}

// shown returns the certificate that a server shows to clients.
func (s *site) shown(host string) []byte {
	s.t.Helper()
	d := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}}
	conn, err := d.DialContext(s.t.Context(), "tcp", s.clients[host])
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	secure, _ := conn.(*tls.Conn)
	return secure.ConnectionState().PeerCertificates[0].Raw
}

// upgraded installs the package, which is another build than that of the servers, and restarts one server at a time.
func (s *site) upgraded() {
	s.run("upgrade")
	if now, err := filepath.EvalSymlinks(filepath.Join(s.bin, "holdfast")); err != nil || !strings.HasPrefix(now, s.system) {
		s.t.Fatalf("the command is %s, %v", now, err)
	}
	for _, host := range []string{"a", "b"} {
		s.servers[host].Terminate()
		s.held()
		s.servers[host] = s.on(host).start("serve")
	}
	s.held()
}
