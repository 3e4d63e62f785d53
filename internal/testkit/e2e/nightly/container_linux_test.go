package nightly_test

import (
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"go/version"
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

	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// image is the final stage of a Dockerfile.
type image struct {
	build           string   // the RUN of the stage before
	args            []string // the arguments of that RUN
	from, user      string
	copies          [][]string // flags and arguments
	entrypoint, cmd []string
}

func parseDockerfile(t *testing.T, text string) image {
	t.Helper()
	var i image
	var args []string // of the stage
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		verb, rest, _ := strings.Cut(line, " ")
		var err error
		switch verb {
		case "", "#":
		case "FROM":
			i, args = image{from: rest, build: i.build, args: i.args}, nil
		case "ARG":
			args = append(args, rest)
		case "RUN":
			i.build, i.args = rest, args
		case "COPY":
			i.copies = append(i.copies, strings.Fields(rest))
		case "USER":
			i.user = rest
		case "ENTRYPOINT":
			err = json.Unmarshal([]byte(rest), &i.entrypoint)
		case "CMD":
			err = json.Unmarshal([]byte(rest), &i.cmd)
		case "WORKDIR", "EXPOSE", "VOLUME", "STOPSIGNAL":
		default:
			err = fmt.Errorf("the test does not know %s", verb)
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	return i
}

// bootID puts the file of the kernel that the store reads into a folder that is to be a root folder.
func bootID(t *testing.T, root string) {
	t.Helper()
	const file = "proc/sys/kernel/random/boot_id"
	id, err := os.ReadFile("/" + file)
	err = errors.Join(err, os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755), os.WriteFile(filepath.Join(root, file), id, 0o644))
	if err != nil {
		t.Fatal(err)
	}
}

// The files of the image, put together as its Dockerfile says, are all that the server needs: it serves
// as another user than root, in a root folder that has nothing else.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can change the root folder")
	}
	i := parseDockerfile(t, read(t, "deploy", "docker", "Dockerfile"))
	if !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(i.user) || !strings.HasPrefix(i.from, "gcr.io/distroless/static-") {
		t.Fatalf("the image runs as %q, from %q", i.user, i.from)
	}
	out, root := t.TempDir(), t.TempDir()
	build := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(i.build, "/out/", out+"/"))
	build.Dir, build.Env = file(t), append(os.Environ(), "GOFLAGS=-buildvcs=false") // the image has no history
	const commit = "0123456789abcdef0123456789abcdef01234567"
	for _, name := range i.args {
		build.Env = append(build.Env, name+"="+commit)
	}
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", i.build, err, text)
	}
	for _, c := range i.copies {
		from, to := strings.Replace(c[len(c)-2], "/out/", out+"/", 1), filepath.Join(root, c[len(c)-1])
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		must(t, "cp", "-a", from, to)
		for _, flag := range c[:len(c)-2] {
			if owner, ok := strings.CutPrefix(flag, "--chown="); ok {
				must(t, "chown", "-R", owner, to)
			}
		}
	}
	if err := os.Mkdir(filepath.Join(root, "tmp"), 0o777); err != nil { // the base image has it
		t.Fatal(err)
	}
	bootID(t, root)
	if binary, err := elf.Open(filepath.Join(root, "usr/bin/holdfast")); err != nil {
		t.Error(err)
	} else if _, err := binary.Symbols(); !errors.Is(err, elf.ErrNoSymbols) {
		t.Errorf("the command has symbols: %v", err)
	}
	if tells := must(t, filepath.Join(root, "usr/bin/holdfast"), "version"); !strings.Contains(tells, " ("+commit+", ") {
		t.Errorf("the version does not name the commit: %s", tells)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	argv := slices.Concat([]string{"--userspec=" + i.user, root}, i.entrypoint, i.cmd, []string{"--listen", addr})
	p := testserver.Start(t, testserver.Command{Path: "chroot", Args: argv, Env: []string{"HOME=/home/nonroot"}})
	p.Await(time.Minute, func(ctx context.Context) error {
		_, err := get(ctx, "http://"+addr+"/readyz")
		return err
	})
	info := must(t, "stat", "--format", "%u:%g %a", filepath.Join(root, "var/lib/holdfast/data"))
	if info != i.user+" 700\n" {
		t.Errorf("the data belongs to %s", info)
	}
	p.Terminate()
}

// imageBuilder returns the program that builds images on this machine, and whose daemon answers; empty: there is none.
func imageBuilder(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"docker", "podman", "buildah"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		out, err := exec.CommandContext(ctx, name, "info").CombinedOutput()
		cancel()
		if err == nil {
			return name
		}
		t.Logf("%s: %v %.200s", name, err, out)
	}
	return ""
}

// The Dockerfile builds with a version of Go that is not older than that of the sources. With HOLDFAST_IMAGE=1 it makes an
// image, as its first lines say, whose command runs: that fetches images and modules, and compiles everything. In other
// runs TestDockerfile has to do.
func TestImage(t *testing.T) {
	t.Parallel()
	froms := regexp.MustCompile(`(?m)^FROM (\S+)`).FindAllStringSubmatch(read(t, "deploy", "docker", "Dockerfile"), -1)
	needed := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(read(t, "go.work"))
	if len(froms) == 0 || needed == nil {
		t.Fatalf("images %q, Go %q", froms, needed)
	}
	tag, ok := strings.CutPrefix(froms[0][1], "golang:")
	if has, _, _ := strings.Cut(tag, "-"); !ok || version.Compare("go"+has, "go"+needed[1]) < 0 {
		t.Errorf("the image is built in %s, and the sources need Go %s", froms[0][1], needed[1])
	}
	if os.Getenv("HOLDFAST_IMAGE") != "" {
		testBuildImage(t, froms)
	}
}

// testBuildImage builds the image in at most 20 minutes.
func testBuildImage(t *testing.T, froms [][]string) {
	t.Helper()
	program := imageBuilder(t)
	if program == "" {
		t.Fatal("no program builds images here")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Minute)
	t.Cleanup(cancel)
	do := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Dir = file(t)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, from := range froms {
		if out, err := do("pull", from[1]); err != nil {
			t.Fatalf("%s cannot be fetched: %v\n%s", from[1], err, out)
		}
	}
	const commit = "0123456789abcdef0123456789abcdef01234567"
	tag := fmt.Sprintf("holdfast-test-%d", os.Getpid())
	t.Cleanup(func() { _, _ = do("rmi", "--force", tag) })
	out, err := do("build", "-f", "deploy/docker/Dockerfile", "--build-arg", "COMMIT="+commit, "-t", tag, ".")
	if err != nil {
		t.Fatalf("%s build: %v\n%s", program, err, out)
	}
	run := []string{"run", "--rm", tag, "version"}
	if program == "buildah" { // it runs commands in a container that it makes for an image
		container := tag + "-run"
		if out, err := do("from", "--name", container, tag); err != nil {
			t.Fatalf("buildah from: %v\n%s", err, out)
		}
		t.Cleanup(func() { _, _ = do("rm", container) })
		run = []string{"run", container, "--", "/usr/bin/holdfast", "version"}
	}
	if out, err := do(run...); err != nil || !strings.HasPrefix(out, "holdfast ") || !strings.Contains(out, " ("+commit+", ") {
		t.Errorf("version in the image: %v\n%s", err, out)
	}
}

// runs returns a probe for Await that succeeds if the command does. An attempt may take longer than the
// context of a probe allows.
func runs(argv []string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return exec.CommandContext(ctx, argv[0], argv[1:]...).Run()
	}
}

// compose is the part of compose.yaml that the tests read.
type compose struct {
	Services map[string]struct {
		Build      struct{ Args map[string]string }
		Entrypoint []string
		Command    []string
		Ports      []string
		Volumes    []string
		ReadOnly   bool `yaml:"read_only"`
		Restart    string
		Networks   map[string]struct{ Aliases []string }
		Health     struct{ Test []string } `yaml:"healthcheck"`
	}
	Volumes map[string]any
}

// The services of compose.yaml, run as processes with their addresses and folders replaced: three etcd and two servers, and
// a lock outlives one of each.
func TestCompose(t *testing.T) {
	t.Parallel()
	var c compose
	if err := yaml.Unmarshal([]byte(read(t, "deploy", "compose.yaml")), &c); err != nil {
		t.Fatal(err)
	}
	binary := holdfast(t)
	port := func() string { return "127.0.0.1:" + strconv.Itoa(testserver.FreePort(t)) }
	members, servers := []string{"etcd-a", "etcd-b", "etcd-c"}, []string{"server-a", "server-b"}
	var shared []string // the addresses by which services reach each other
	clients, peers := make(map[string]string), make(map[string]string)
	for _, name := range members {
		clients[name], peers[name] = port(), port()
		shared = append(shared, name+":2379", clients[name], name+":2380", peers[name])
	}
	shared = append(shared, "etcd-a,etcd-b,etcd-c", clients["etcd-a"]+","+clients["etcd-b"]+","+clients["etcd-c"])
	run := func(pairs []string, words ...string) *testserver.Process {
		r := strings.NewReplacer(append(pairs, shared...)...)
		for i := range words {
			words[i] = r.Replace(words[i])
		}
		return testserver.Start(t, testserver.Command{Path: words[0], Args: words[1:]})
	}
	processes := make(map[string]*testserver.Process)
	for _, name := range members {
		s := c.Services[name]
		volume, _, _ := strings.Cut(strings.Join(s.Volumes, ""), ":")
		if _, ok := c.Volumes[volume]; !ok || s.Restart != "unless-stopped" || len(s.Ports) != 0 {
			t.Errorf("%s: %+v", name, s)
		}
		processes[name] = run([]string{
			"/usr/local/bin/etcd", testserver.Tool(t, "etcd"), "0.0.0.0:2379", clients[name], "0.0.0.0:2380", peers[name], "/var/lib/etcd", testserver.Dir(t),
		}, slices.Concat(s.Entrypoint, s.Command)...)
	}
	for _, name := range servers {
		s := c.Services[name]
		if !s.ReadOnly || s.Restart != "unless-stopped" || len(s.Ports) != 1 || !strings.HasPrefix(s.Ports[0], "127.0.0.1:") || !strings.HasSuffix(s.Ports[0], ":7420") {
			t.Errorf("%s: %+v", name, s)
		}
		if s.Build.Args["COMMIT"] != "${COMMIT:-}" || !slices.Equal(s.Networks["default"].Aliases, []string{"locks"}) {
			t.Errorf("%s: the image is built with %v, the names are %v", name, s.Build.Args, s.Networks)
		}
		clients[name] = port()
		processes[name] = run([]string{"0.0.0.0:7420", clients[name]}, slices.Concat([]string{binary}, s.Command)...)
		health := slices.Clone(s.Health.Test[1:])
		health[0], health[len(health)-1] = binary, "holdfast://"+clients[name]
		processes[name].Await(2*time.Minute, runs(health))
	}
	acquire := func(name string) func(context.Context) error {
		return runs([]string{binary, "acquire", name, "--try", "--ttl", "10m", "--lease", "lease-of-the-test-" + name, "--backend", "holdfast://" + clients["server-a"] + "," + clients["server-b"]})
	}
	processes["server-b"].Await(time.Minute, acquire("0001"))
	processes["server-a"].Kill()
	processes["etcd-a"].Kill()
	processes["server-b"].Await(time.Minute, acquire("0002"))
	if held := must(t, binary, "ls", "--backend", "holdfast://"+clients["server-b"]); !strings.Contains(held, "0001") || !strings.Contains(held, "0002") {
		t.Errorf("the locks are %s", held)
	}
}

// The files of a release exist, its binary is built as in the image, and its hook makes a package.
func TestGoreleaser(t *testing.T) {
	t.Parallel()
	needs(t, "dpkg-deb")
	var c struct {
		Builds []struct {
			Env, Flags, Ldflags []string
			Dir                 string
			Hooks               struct {
				Post []struct {
					Cmd string
					Env []string
				}
			}
		}
		Archives []struct{ Files []string }
	}
	if err := yaml.Unmarshal([]byte(read(t, "deploy", "goreleaser.yaml")), &c); err != nil {
		t.Fatal(err)
	}
	for _, glob := range c.Archives[0].Files {
		if found, err := filepath.Glob(file(t, glob)); err != nil || len(found) == 0 {
			t.Errorf("there is no %s: %v", glob, err)
		}
	}
	b := c.Builds[0]
	// goreleaser has the history, from which go stamps the version and the commit; the image has not.
	const linked, stamped = " -X github.com/holdfast-io/holdfast/cmd/holdfast/internal/cli.commit=$COMMIT", " -buildvcs=true"
	flags, ok := strings.CutSuffix(strings.Join(b.Flags, " "), stamped)
	if !ok {
		t.Errorf("a release is built without%s: its command would not know its version", stamped)
	}
	command := fmt.Sprintf("%s go build %s -ldflags %q -o /out/holdfast ./%s", b.Env[0], flags, b.Ldflags[0], b.Dir)
	if image := parseDockerfile(t, read(t, "deploy", "docker", "Dockerfile")).build; !strings.HasPrefix(strings.Replace(image, linked, "", 1), command+" ") {
		t.Errorf("a release is built by %s, and the image by %s", command, image)
	}
	small, dist := filepath.Join(t.TempDir(), "holdfast"), t.TempDir()
	if err := os.WriteFile(small, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	hook := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(b.Hooks.Post[0].Cmd, "--target dist", "--target "+dist, 1))
	hook.Dir, hook.Env = file(t), os.Environ()
	for _, e := range b.Hooks.Post[0].Env {
		hook.Env = append(hook.Env, strings.NewReplacer("{{ .Path }}", small, "{{ .Version }}", "1.2.3", "{{ .Arch }}", "arm64").Replace(e))
	}
	if out, err := hook.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := must(t, "dpkg-deb", "--field", filepath.Join(dist, "holdfast_1.2.3_arm64.deb"), "Architecture"); got != "arm64\n" {
		t.Errorf("the package is for %s", got)
	}
}
