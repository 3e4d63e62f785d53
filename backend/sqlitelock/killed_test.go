//go:build linux || darwin || freebsd

package sqlitelock_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// F9: all processes that hand a lock over to each other are killed, again and again, at any point
// of a transaction. No token that one of them received is issued again, and tokens rise from the
// killed processes to their successors. HOLDFAST_KILLS is how often.
func TestKilledUnderLoad(t *testing.T) {
	t.Parallel()
	kills := 3
	if text := os.Getenv("HOLDFAST_KILLS"); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil || kills <= 0 {
			t.Fatalf("HOLDFAST_KILLS is %q: it has to be a number above 0", text)
		}
	}
	dir := t.TempDir()
	j := job{Do: "churn", Path: filepath.Join(dir, "locks.db"), Lock: "x", Data: filepath.Join(dir, "last"), TTL: 500 * time.Millisecond}
	var highest uint64
	grants := 0
	for range kills {
		const processes, between = 3, 5
		var ps []*process
		for range processes {
			ps = append(ps, start(t, j))
		}
		for range between {
			ps[0].expect("had")
		}
		for _, p := range ps {
			_ = p.cmd.Process.Kill() // end reports when it had ended by itself
		}
		told := make(map[uint64]bool)
		for _, p := range ps {
			if err := p.end(); err == nil || !strings.HasPrefix(err.Error(), "signal: killed") {
				t.Errorf("a process ended by itself: %v", err)
			}
			for line := range p.out {
				word, rest, _ := strings.Cut(line, " ")
				if word != "had" { // a holder that is late past its TTL may overlap: only tokens are judged here
					continue
				}
				token, err := strconv.ParseUint(rest, 10, 64)
				if err != nil {
					continue // it was killed in the middle of the line
				}
				if told[token] || token <= highest {
					t.Errorf("token %d was told again, after %d", token, highest)
				}
				told[token] = true
				grants++
			}
		}
		for token := range told {
			highest = max(highest, token)
		}
	}
	t.Logf("%d grants, %d kills", grants, kills)
}
