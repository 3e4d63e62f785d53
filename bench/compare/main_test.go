package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fake writes a program that answers like "holdfast bench": the n-th call reports the n-th figure.
func fake(t *testing.T, figures ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i, f := range figures {
		report := `{"commit":"abc","results":[{"engine":"redis","scenario":"own/1","contender":"holdfast","figures":{"pairs_per_second":` + f + `}},
			{"engine":"redis","scenario":"renew/100","contender":"holdfast","figures":{"requests_per_second":` + f + `,"cpu":1}}]}`
		if err := os.WriteFile(filepath.Join(dir, strings.Repeat("x", i)+"n"), []byte(report), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "bench")
	script := `#!/bin/sh
cd ` + dir + ` || exit 1
[ "$1 $2 $3 $4" = "--engine redis --contender holdfast" ] || { echo "arguments: $*"; exit 1; }
n=$(cat count 2>/dev/null); printf x >>count
cat "${n}n" >"$8" || exit 1
`
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return program
}

func TestRun(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		before, after []string
		least         string
		want          []string
		err           string
	}{
		"the median of the ratios of each round": {
			[]string{"100", "200", "400"},
			[]string{"90", "200", "200"},
			"0.85",
			[]string{
				"redis      own/1     pairs/s     200    200  0.90    0.50     1.00",
				"redis  renew/100  requests/s     200    200  1.11    1.00     2.00",
			},
			"",
		},
		"a row below the least": {
			[]string{"100"},
			[]string{"94"},
			"0.95",
			[]string{"redis      own/1     pairs/s     100     94  0.94    0.94     0.94"},
			"below 0.95 of before: redis own/1 pairs/s 0.94",
		},
		"a build that fails": {[]string{"100"}, nil, "0.95", nil, "redis, after, round 1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			err := run(t.Context(), []string{
				"-before", fake(t, tt.before...), "-after", fake(t, tt.after...), "-engine", "redis",
				"-rounds", string(rune('0' + len(tt.before))), "-least", tt.least,
			}, &out)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			for _, line := range tt.want {
				if !strings.Contains(out.String(), line) {
					t.Errorf("wrote:\n%s\nwant a line %q", out.String(), line)
				}
			}
		})
	}
}
