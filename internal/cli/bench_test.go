package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/bench"
)

// A quick run reports the same figures on the terminal, as JSON and in the files.
func TestBench(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	args := []string{
		"bench", "--engine", "memory", "--quick", "--time", "10ms", "--only", "own/8,one/8",
		"--out", filepath.Join(dir, "r.json"), "--out", filepath.Join(dir, "r.html"), "--out", filepath.Join(dir, "r.txt"),
	}
	r := run(t, command(t, "", args...))
	if r.status != 0 || !strings.Contains(r.out, "memory, own/8:") || !strings.Contains(r.out, "holdfast") || !strings.Contains(r.stderr, "memory one/8") {
		t.Fatalf("%+v", r)
	}
	text, err := os.ReadFile(filepath.Join(dir, "r.txt"))
	if err != nil || string(text) != r.out {
		t.Errorf("r.txt: %v\n%s\nprinted:\n%s", err, text, r.out)
	}
	page, err := os.ReadFile(filepath.Join(dir, "r.html"))
	if err != nil || !strings.Contains(string(page), "<svg") {
		t.Errorf("r.html: %v\n%s", err, page)
	}
	text, err = os.ReadFile(filepath.Join(dir, "r.json"))
	if err != nil {
		t.Fatal(err)
	}
	readBench(t, text)

	r = run(t, command(t, "", "bench", "--engine", "memory", "--rounds", "1", "--time", "10ms", "--only", "own/8,one/8", "--json", "--quiet"))
	if r.status != 0 || r.stderr != "" {
		t.Fatalf("%+v", r)
	}
	readBench(t, []byte(r.out))
}

func readBench(t *testing.T, text []byte) {
	t.Helper()
	var report bench.Report
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if len(report.Results) != 2 || report.Machine.Cores < 1 {
		t.Fatalf("%+v", report)
	}
	for _, x := range report.Results {
		if x.Failed != "" || x.Figures[bench.PairsPerSecond] <= 0 || x.Figures[bench.DoubleHolds] != 0 {
			t.Errorf("%+v", x)
		}
	}
}

// With a server of the caller's it does not start any.
func TestBenchBackend(t *testing.T) {
	t.Parallel()
	r := run(t, command(t, sqliteURL(t), "bench", "--quick", "--time", "10ms", "--only", "own/1", "--quiet"))
	if r.status != 0 || !strings.Contains(r.out, "sqlite, own/1:") || strings.Contains(r.out, "started for this run") {
		t.Errorf("%+v", r)
	}
}

func TestBenchUsage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args   []string
		status int
		told   string
	}{
		"out":         {[]string{"--out", "r.pdf"}, 64, ".html"},
		"folder":      {[]string{"--out", filepath.Join(t.TempDir(), "none", "r.txt")}, 64, "none"},
		"rounds":      {[]string{"--engine", "memory", "--rounds", "-1"}, 64, "rounds"},
		"pattern":     {[]string{"--engine", "memory", "--only", "["}, 64, "pattern"},
		"engine":      {[]string{"--engine", "carrier-pigeon"}, 64, "carrier-pigeon"},
		"both":        {[]string{"--engine", "memory", "--backend", "memory://"}, 64, "engine"},
		"nothing":     {[]string{"--engine", "memory", "--only", "nothing"}, 1, "nothing was measured"},
		"no argument": {[]string{"redis"}, 64, "redis"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t, command(t, "", append([]string{"bench"}, c.args...)...))
			if r.status != c.status || !strings.Contains(r.stderr, c.told) {
				t.Errorf("want status %d and %q: %+v", c.status, c.told, r)
			}
		})
	}
}

// --peers needs a separate program: without it, the error explains how to get it; with it, it
// gets the same flags, and its status is the status of the command.
func TestBenchPeers(t *testing.T) {
	t.Parallel()
	cmd := command(t, "", "bench", "--peers", "--quick")
	cmd.Env = append(cmd.Env, "PATH="+t.TempDir())
	if r := run(t, cmd); r.status != 1 || !strings.Contains(r.stderr, "bench/peers") {
		t.Errorf("without it: %+v", r)
	}
	dir := t.TempDir()
	script := "#!/bin/sh\necho \"got $*\"\nexit 3\n"
	if err := os.WriteFile(filepath.Join(dir, "holdfast-bench-peers"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd = command(t, "", "bench", "--peers", "--only", "own/1")
	cmd.Env = append(cmd.Env, "PATH="+dir+":"+os.Getenv("PATH"))
	if r := run(t, cmd); r.status != 3 || r.out != "got bench --peers --only own/1\n" {
		t.Errorf("with it: %+v", r)
	}
}
