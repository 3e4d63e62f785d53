package launch_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Kill ends all children of a process that starts them one after the other, in sessions of their own,
// as PostgreSQL does: also the one that is being started when the process is stopped.
func TestKillForks(t *testing.T) {
	t.Parallel()
	for range 10 {
		p := start(t, "n=0; while [ $((n += 1)) -lt 300 ]; do setsid sleep 600 & done; wait")
		if !within(func() bool { return len(in(p.Dir())) > 5 }) {
			t.Fatalf("%s started no children", p)
		}
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		if !within(func() bool { return len(in(p.Dir())) == 0 }) {
			t.Fatalf("Kill left %q", in(p.Dir()))
		}
	}
}

// within waits until something is true, and reports whether that was soon.
func within(is func() bool) bool {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if is() {
			return true
		}
	}
	return false
}

// in returns the command lines of the processes whose working folder is dir.
func in(dir string) []string {
	var all []string
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		if at, err := os.Readlink(link); err == nil && at == dir {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
			all = append(all, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return all
}
