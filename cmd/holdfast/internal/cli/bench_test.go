package cli_test

import (
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/bench"
)

// The command measures our client on the backend: a table for people, and Go's benchmark format, of which
// the figures can be read again.
func TestBench(t *testing.T) {
	t.Parallel()
	args := []string{"bench", "--rounds", "2", "--time", "10ms", "--only", "own/8,one/8"}
	r := run(t, command(t, sqliteURL(t), args...))
	if r.status != 0 || !strings.Contains(r.out, "sqlite, own/8:") || !strings.Contains(r.stderr, "sqlite one/8") {
		t.Fatalf("%+v", r)
	}
	r = run(t, command(t, sqliteURL(t), append(args, "--benchfmt", "--quiet")...))
	if r.status != 0 || r.stderr != "" {
		t.Fatalf("%+v", r)
	}
	report, err := bench.Read(strings.NewReader(r.out))
	if err != nil {
		t.Fatal(err)
	}
	for _, scenario := range []string{"own/8", "one/8"} {
		x := report.Find("sqlite", scenario, "holdfast")
		if x == nil || len(x.Rounds) != 2 || x.Figures[bench.PairsPerSecond] <= 0 || x.Figures[bench.DoubleHolds] != 0 {
			t.Errorf("%s: %+v", scenario, x)
		}
	}
}

func TestBenchUsage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args   []string
		status int
		told   string
	}{
		"rounds":      {[]string{"--rounds", "-1"}, 64, "rounds"},
		"pattern":     {[]string{"--only", "["}, 64, "pattern"},
		"nothing":     {[]string{"--only", "nothing"}, 1, "nothing was measured"},
		"json":        {[]string{"--json"}, 64, "benchfmt"},
		"no argument": {[]string{"redis"}, 64, "redis"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t, command(t, "memory://", append([]string{"bench"}, c.args...)...))
			if r.status != c.status || !strings.Contains(r.stderr, c.told) {
				t.Errorf("want status %d and %q: %+v", c.status, c.told, r)
			}
		})
	}
}
