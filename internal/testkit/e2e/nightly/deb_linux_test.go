package nightly_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// static builds the command as a release does: one file that needs no library of the system.
func static(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "holdfast")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", binary, ".")
	build.Dir, build.Env = file(t, "cmd", "holdfast"), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return binary
}

// deb builds the package with a binary.
func deb(t *testing.T, binary string) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), testserver.Tool(t, "nfpm"), "package", "--config", "deploy/nfpm.yaml", "--packager", "deb", "--target", dir)
	cmd.Dir, cmd.Env = file(t), append(os.Environ(), "BINARY="+binary, "VERSION=1.2.3", "GOARCH="+runtime.GOARCH)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nfpm: %v\n%s", err, out)
	}
	found, err := filepath.Glob(filepath.Join(dir, "holdfast_1.2.3*_*.deb"))
	if err != nil || len(found) != 1 {
		t.Fatalf("packages: %q, %v", found, err)
	}
	return found[0]
}

// The package has the files of deploy with their modes, belongs to root, and its binary serves.
func TestDeb(t *testing.T) {
	t.Parallel()
	needs(t, "dpkg-deb")
	pkg := deb(t, static(t))
	modes := make(map[string]string)
	for line := range strings.Lines(must(t, "dpkg-deb", "--contents", pkg)) {
		f := strings.Fields(line)
		if !strings.HasPrefix(line, "d") {
			modes[strings.TrimPrefix(f[5], ".")] = f[0]
		}
		if f[1] != "root/root" {
			t.Errorf("it does not belong to root: %s", line)
		}
	}
	text := "-rw-r--r--"
	want := map[string]string{
		"/usr/bin/holdfast": "-rwxr-xr-x", "/usr/lib/systemd/system/holdfast.service": text, "/etc/default/holdfast": text,
		"/usr/share/doc/holdfast/copyright": text, "/usr/share/doc/holdfast/CHANGELOG.md": text, "/usr/share/doc/holdfast/operations.md": text,
		"/usr/share/doc/holdfast/examples/rules.yaml": text, "/usr/share/doc/holdfast/examples/dashboard.json": text,
	}
	if !maps.Equal(modes, want) {
		t.Errorf("it has %v, want %v", modes, want)
	}
	if got := must(t, "dpkg-deb", "--info", pkg, "conffiles"); got != "/etc/default/holdfast\n" {
		t.Errorf("conffiles: %q", got)
	}
	root := t.TempDir()
	must(t, "dpkg-deb", "--extract", pkg, root)
	must(t, "dpkg-deb", "--control", pkg, filepath.Join(root, "DEBIAN"))
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		must(t, "sh", "-n", filepath.Join(root, "DEBIAN", script))
	}
	binary := filepath.Join(root, "usr", "bin", "holdfast")
	if got := must(t, binary, "version"); !strings.HasPrefix(got, "holdfast ") {
		t.Errorf("version: %s", got)
	}
	serve(t, binary)
}

// The package is installed, updated, removed and purged under a folder. The user of the service is
// created once, what the unit starts serves as this user, and the data outlives all of it.
func TestDebInstalled(t *testing.T) {
	t.Parallel()
	needs(t, "dpkg")
	if os.Geteuid() != 0 {
		t.Skip("dpkg installs as root only")
	}
	root := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// passwd, which the package needs, runs on the host.
	write("var/lib/dpkg/status", "Package: passwd\nStatus: install ok installed\nMaintainer: none <none@example.com>\nArchitecture: all\nVersion: 1\nDescription: none\n\n")
	write("var/lib/dpkg/info/passwd.list", "")
	for _, name := range []string{"etc/passwd", "etc/group", "etc/shadow", "etc/gshadow", "var/lib/dpkg/updates/.keep"} {
		write(name, "")
	}
	if err := os.Remove(filepath.Join(root, "var/lib/dpkg/updates/.keep")); err != nil {
		t.Fatal(err)
	}
	dpkg := func(args ...string) string {
		t.Helper()
		return must(t, "dpkg", append([]string{"--root=" + root, "--force-script-chrootless", "--force-not-root", "--log=" + filepath.Join(root, "log")}, args...)...)
	}
	must(t, "chmod", "-R", "u=rwX,go=rX", root) // whatever the umask is
	pkg := deb(t, static(t))
	has := func(name string) bool {
		_, err := os.Stat(filepath.Join(root, name))
		return err == nil
	}
	dpkg("--install", pkg)
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	own := "# of this host\nHOLDFAST_SERVE_LISTEN=" + addr + "\nOPTIONS=\"--drain-delay 10ms -q\"\n"
	write("etc/default/holdfast", own)
	dpkg("--install", pkg) // an update
	users, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if err != nil || !regexp.MustCompile(`^holdfast:x:\d+:\d+::/var/lib/holdfast:/usr/sbin/nologin\n$`).Match(users) {
		t.Errorf("users: %q, %v", users, err)
	}
	options, err := os.ReadFile(filepath.Join(root, "etc/default/holdfast"))
	if err != nil || string(options) != own {
		t.Errorf("the update changed the options: %q, %v", options, err)
	}
	if !has("usr/bin/holdfast") || !has("usr/lib/systemd/system/holdfast.service") {
		t.Error("it is not installed")
	}
	starts(t, root, addr)
	dpkg("--remove", "holdfast")
	if has("usr/bin/holdfast") || !has("etc/default/holdfast") {
		t.Error("the removal left the program, or removed the options")
	}
	if out := dpkg("--purge", "holdfast"); !strings.Contains(out, "were kept") {
		t.Errorf("the purge does not say that the data was kept: %s", out)
	}
	if has("etc/default/holdfast") || !has("var/lib/holdfast/serve/locks.db") {
		t.Error("the purge left the options, or removed the data")
	}
}

// starts runs what the installed unit starts, in the folder as its root: with the variables of the unit, as its user,
// in a state folder as systemd makes it. The server is ready, and its store outlives it.
func starts(t *testing.T, root, addr string) {
	t.Helper()
	text := func(name string) string {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	unit := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^(User|Group|Environment|EnvironmentFile|ExecStart|StateDirectory)=(.*)$`).FindAllStringSubmatch(text("usr/lib/systemd/system/holdfast.service"), -1) {
		unit[m[1]] = m[2]
	}
	account := regexp.MustCompile(`(?m)^` + unit["User"] + `:x:(\d+):(\d+):`).FindStringSubmatch(text("etc/passwd"))
	if account == nil || unit["Group"] != unit["User"] { // postinst makes a group of that name
		t.Fatalf("the unit runs as %s:%s", unit["User"], unit["Group"])
	}
	userspec := account[1] + ":" + account[2]
	state := filepath.Join(root, "var/lib", unit["StateDirectory"])
	must(t, "install", "-d", "-m", "0700", "-o", account[1], "-g", account[2], state)
	var env, argv []string
	variables := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^(\w+)="?([^"\n]*)"?$`).FindAllStringSubmatch(text(strings.TrimPrefix(unit["EnvironmentFile"], "-")), -1) {
		env, variables[m[1]] = append(env, m[1]+"="+m[2]), m[2]
	}
	for word := range strings.FieldsSeq(unit["ExecStart"]) {
		if name, ok := strings.CutPrefix(word, "$"); ok { // systemd makes a word of each of its words
			argv = append(argv, strings.Fields(variables[name])...)
			continue
		}
		argv = append(argv, word)
	}
	bootID(t, root)
	p := testserver.Start(t, testserver.Command{Path: "chroot", Args: append([]string{"--userspec=" + userspec, root}, argv...), Env: append(env, unit["Environment"], "HOME=/")})
	p.Await(patience, func(ctx context.Context) error {
		_, err := get(ctx, "http://"+addr+"/readyz")
		return err
	})
	p.Await(patience, runs([]string{
		filepath.Join(root, "usr/bin/holdfast"), "acquire", "n", "--ttl", "1m", "--lease", "lease-of-the-test-0001", "--backend", "holdfast://" + addr,
	}))
	if info := must(t, "stat", "--format", "%u:%g %a", filepath.Join(state, "serve")); info != userspec+" 700\n" {
		t.Errorf("the data belongs to %s", info)
	}
	p.Terminate()
}

// needs fails the test if a program is not there, which scripts/install-test-deps installs.
func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Fatal(err)
	}
}

// systemd accepts the unit, and its sandbox leaves little: 1.5 of 10 at the time of writing.
func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	needs(t, "systemd-analyze")
	unit := filepath.Join(t.TempDir(), "holdfast.service")
	text := strings.Replace(read(t, "deploy", "systemd", "holdfast.service"), "ExecStart=/usr/bin/holdfast ", "ExecStart="+holdfast(t)+" ", 1)
	if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := must(t, "systemd-analyze", "verify", "--man=no", unit); out != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	must(t, "systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=20", unit)
}
