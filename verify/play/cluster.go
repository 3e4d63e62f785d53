//go:build unix

package play

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/shim"
	"github.com/holdfast-io/holdfast/open"
)

// serverStart is how long a server may take until it serves. A server that ends is noticed
// immediately. A kube-apiserver alone needs a quarter of a minute of two processors.
const serverStart = 4 * time.Minute

// errServerEnded is the error of a server that ended by itself.
var errServerEnded = errors.New("the server ended")

// cluster has servers that this run started, and may stop and crash. Their data is on disk, in
// a folder that is deleted with them.
type cluster struct {
	url      string
	each     []string // the URLs that the workers use in turn; empty: all use url
	dir      string
	programs map[string][]string // see Config.Programs
	members  []*member
	account  string // account that the servers run as if this process is root's, because they refuse to run as root
	// form makes a cluster of the started servers. Optional.
	form func(context.Context) error
	// replace restores a member that has lost its data, as an operator does. Optional: without
	// it no member loses its data.
	replace func(context.Context, *member) error
	// apart: no two servers may be down at the same time.
	apart bool
	shims shims
}

// member is one server.
type member struct {
	name string // of the program, for people
	argv []string
	env  []string // in addition to that of this process
	addr string
	url  string // of this server as a backend of its own; empty: it serves when it listens
	cred *syscall.Credential
	node string // its name in a cluster whose members have names
	data string // the folder that is deleted when it loses its data
	// trace is how long operations in progress at the crash of the server may delay other
	// clients.
	trace time.Duration
	// diskless: it stores nothing itself.
	diskless bool
	disk     *shim.Disk    // nil: the machine's
	clock    *shim.Clock   // nil: the machine's
	behind   time.Duration // by how much its clock was stepped back

	mu   sync.Mutex
	cmd  *exec.Cmd
	gone chan struct{} // closed when the process has ended
	said *tail
}

// startCluster starts the servers of a kind with the programs of this machine.
func startCluster(ctx context.Context, kind string, programs map[string][]string) (*cluster, error) {
	dir, err := os.MkdirTemp("", "holdfast-verify-cluster-")
	if err != nil {
		return nil, fmt.Errorf("verify: a folder for the servers: %w", err)
	}
	c := &cluster{dir: dir, programs: programs}
	if prepare, known := kinds()[kind]; known {
		err = prepare(ctx, c)
	} else {
		err = &backend.InvalidError{Field: "local-cluster", Value: fmt.Sprintf("%.20q", kind), Bound: "one of " + strings.Join(Clusters(), ", ")}
	}
	if err == nil {
		err = c.addShims(ctx)
	}
	for _, m := range c.members {
		if err == nil {
			err = m.start()
		}
		if err == nil && c.oneByOne(kind) {
			err = m.ready(ctx)
		}
	}
	if err == nil && c.form != nil {
		err = c.form(ctx)
	}
	for _, m := range c.members {
		if err == nil {
			err = m.ready(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.end())
	}
	return c, nil
}

// Clusters lists the values that Config.Cluster may have.
func Clusters() []string { return slices.Sorted(maps.Keys(kinds())) }

// oneByOne reports whether each server needs those before it.
func (c *cluster) oneByOne(kind string) bool { return kind == "kubernetes" }

// add adds a member. program is a name that Config.Programs or the machine knows.
func (c *cluster) add(program, addr, url string, args ...string) error {
	argv, err := c.program(program)
	if err != nil {
		return err
	}
	m := &member{name: program, argv: slices.Concat(argv, args), addr: addr, url: url}
	m.cred, err = c.credential()
	c.members = append(c.members, m)
	return err
}

// program finds a program: where the configuration points, in $PATH, or where Debian puts
// programs that only its own scripts are meant to call.
func (c *cluster) program(name string) ([]string, error) {
	if argv := c.programs[name]; len(argv) > 0 {
		return argv, nil
	}
	path, err := exec.LookPath(name)
	if err == nil {
		return []string{path}, nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	more, _ := filepath.Glob("/usr/sbin/" + name)
	if found = append(found, more...); len(found) > 0 {
		return []string{slices.Max(found)}, nil
	}
	return nil, fmt.Errorf("verify: %s is not installed: %w", name, err)
}

// credential returns that of the servers' account, if this process is root's. The servers then
// must be able to read their folder.
func (c *cluster) credential() (*syscall.Credential, error) {
	if c.account == "" || os.Getuid() != 0 {
		return nil, nil //nolint:nilnil // none is needed
	}
	u, err := user.Lookup(c.account)
	if err != nil {
		return nil, fmt.Errorf("verify: the account that the servers run as: %w", err)
	}
	const bits = 32
	uid, err1 := strconv.ParseUint(u.Uid, 10, bits)
	gid, err2 := strconv.ParseUint(u.Gid, 10, bits)
	if err := errors.Join(err1, err2, os.Chown(c.dir, int(uid), int(gid))); err != nil {
		return nil, fmt.Errorf("verify: the account that the servers run as: %w", err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// once runs a program to its end, for example one that prepares a folder.
func (c *cluster) once(ctx context.Context, program string, args ...string) error {
	argv, err := c.program(program)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, serverStart)
	defer cancel()
	argv = append(slices.Clone(argv), args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // of the list of kinds
	cmd.Dir, cmd.SysProcAttr = c.dir, sysProcAttr()
	if cmd.SysProcAttr.Credential, err = c.credential(); err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("verify: %s: %w: %.500s", program, err, out)
	}
	return nil
}

// folder creates a folder for a member.
func (c *cluster) folder(n int) (string, error) {
	dir := filepath.Join(c.dir, fmt.Sprintf("m%d", n+1))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("verify: a folder for a server: %w", err)
	}
	return dir, nil
}

// file writes a file of the cluster, and returns its path.
func (c *cluster) file(name, text string) (string, error) {
	path := filepath.Join(c.dir, name)
	err := os.WriteFile(path, []byte(text), 0o600)
	cred, err2 := c.credential()
	if cred != nil {
		err2 = os.Chown(path, int(cred.Uid), int(cred.Gid))
	}
	if err := errors.Join(err, err2); err != nil {
		return "", fmt.Errorf("verify: settings of a server: %w", err)
	}
	return path, nil
}

// freeAddrs finds addresses of the loopback on which nothing listens at the moment.
func freeAddrs(n int) ([]string, error) {
	var addrs []string
	for range n {
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("verify: find a free port: %w", err)
		}
		defer l.Close() //nolint:errcheck // until all are found
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

// port returns the port of an address of freeAddrs.
func port(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }

// start starts the server, the first time or after its crash.
func (m *member) start() error {
	cmd := exec.Command(m.argv[0], m.argv[1:]...) //nolint:gosec,noctx // a server of this run; it ends with it
	said := &tail{}
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = said, said, sysProcAttr()
	cmd.SysProcAttr.Credential = m.cred
	cmd.Env = append(os.Environ(), m.env...)
	attend, err := m.shimmed(cmd)
	if err != nil {
		return fmt.Errorf("verify: start %s: %w", m.name, err)
	}
	gone := make(chan struct{})
	started := make(chan error, 1)
	go func() {
		// The death signal arrives when the thread that started the child ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		attend(gone)
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed; if it ended by itself, ready or the run reports that
		}
		close(gone)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("verify: start %s: %w", m.name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cmd, m.gone, m.said = cmd, gone, said
	return nil
}

// ready waits until the server serves, and checks that it lives.
func (m *member) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, serverStart)
	defer cancel()
	m.mu.Lock()
	gone, said := m.gone, m.said
	m.mu.Unlock()
	for {
		err := m.serves(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-gone:
			return fmt.Errorf("verify: %s: %w: %s", m.name, errServerEnded, said.text())
		default:
		}
		if !pause(ctx, 20*time.Millisecond) {
			return fmt.Errorf("verify: %s does not serve: %w: %s", m.name, err, said.text())
		}
	}
}

// ended is closed when the process of the server has ended.
func (m *member) ended() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.gone
}

// last returns the end of the server's output.
func (m *member) last() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.said.text()
}

// serves requests a lock from the server, if it is a backend by itself: many servers listen
// long before they can serve.
func (m *member) serves(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.addr)
	if err != nil {
		return err //nolint:wrapcheck // ready does
	}
	_ = conn.Close()
	if m.url == "" {
		return nil
	}
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b, err := open.URL(ctx, m.url, open.Options{})
	if err != nil {
		return err
	}
	locks, err := holdfast.New(b, holdfast.Config{TTL: max(2*time.Second, b.Capabilities().MinTTL), Owner: "verify", Timeout: patience})
	if err == nil {
		err = locks.Do(ctx, "holdfast-verify-up", func(context.Context, *holdfast.Lock) error { return nil })
		_ = locks.Close(ctx) // the rest ends with its TTL
	}
	_ = b.Close()
	return err
}

// signal sends a signal to the server and to the processes that it has started. Those of
// PostgreSQL are in groups of their own.
func (m *member) signal(sig syscall.Signal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd == nil {
		return
	}
	pid := m.cmd.Process.Pid
	children := childrenOf(pid)
	_ = m.cmd.Process.Signal(sig) // a process that has ended needs none
	for _, child := range children {
		_ = syscall.Kill(child, sig)
	}
}

// childrenOf returns the processes that a process has started, if the system reports them.
func childrenOf(pid int) []int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	var out []int
	for field := range strings.FieldsSeq(string(text)) {
		if n, err := strconv.Atoi(field); err == nil {
			out = append(out, n)
		}
	}
	return out
}

// crash kills the server, with the processes that it has started, and waits until it has ended.
func (m *member) crash() {
	m.signal(syscall.SIGKILL)
	m.mu.Lock()
	gone := m.gone
	m.mu.Unlock()
	if gone != nil {
		<-gone
	}
}

// revive starts a server that has crashed, and waits until it serves. Remains of the former
// process may prevent its start for a moment.
func (m *member) revive(ctx context.Context) error {
	end := time.Now().Add(serverStart)
	for {
		err := m.start()
		if err == nil {
			err = m.ready(ctx)
		}
		if !errors.Is(err, errServerEnded) || time.Now().After(end) || !pause(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// end ends the servers and deletes their data.
func (c *cluster) end() error {
	for _, m := range slices.Backward(c.members) {
		m.crash()
	}
	err := c.settleDisks()
	if e := os.RemoveAll(c.dir); e != nil {
		err = errors.Join(err, fmt.Errorf("verify: remove the folder of the servers: %w", e))
	}
	return err
}
