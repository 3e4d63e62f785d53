package launch_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// Kill ends all children of a process that starts them one after the other, in sessions of their own,
// as PostgreSQL does: also the one that is being started when the process is stopped.
func TestKillForks(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for range 10 {
		p := start(t, "n=0; while [ $((n += 1)) -lt 300 ]; do setsid sleep 600 & done; wait")
		leasetest.Eventually(t, "it starts children", func() bool { return len(in(p.Dir())) > 5 })
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		leasetest.Succeeds(t, func() error {
			if left := in(p.Dir()); len(left) > 0 {
				return fmt.Errorf("Kill left %q", left)
			}
			return nil
		})
	}
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
