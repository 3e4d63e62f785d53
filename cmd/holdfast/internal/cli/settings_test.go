//go:build unix

package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A flag comes before a variable; an unknown variable and a value of the wrong kind are refused by name, before
// anything is created.
func TestVariablesOfServe(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	for _, c := range []struct{ env, flag, says string }{
		{"HOLDFAST_SERVE_LISTEN=of-the-variable", "-q", `listen: "of-the-variable"`},
		{"HOLDFAST_SERVE_LISTEN=of-the-variable", "--listen=of-the-flag", `listen: "of-the-flag"`},
		{"HOLDFAST_SERVE_LISTEN=", "--tls-cert=x", "tls-cert, tls-key: must be given both"},
		{"HOLDFAST_SERVE_HOST=*.*,b", "-q", `host: ["*.*" "b"]`},
		{"HOLDFAST_SERVE_LISTE=a", "-q", "HOLDFAST_SERVE_LISTE: serve has no such flag"},
		{"HOLDFAST_SERVE_HELP=true", "-q", "HOLDFAST_SERVE_HELP: serve has no such flag"},
		{"HOLDFAST_SERVE_DRAIN_DELAY=7", "-q", "HOLDFAST_SERVE_DRAIN_DELAY: "},
		{"HOLDFAST_SERVE_ANONYMOUS=perhaps", "-q", "HOLDFAST_SERVE_ANONYMOUS: "},
	} {
		cmd := command(t, "redis://nowhere", "serve", c.flag)
		cmd.Env = append(cmd.Env, c.env, "HOLDFAST_SERVE_DATA_DIR="+dir)
		if r := run(t, cmd); r.status != 64 || !strings.Contains(r.stderr, c.says) {
			t.Errorf("%s and %s: %+v, want %q", c.env, c.flag, r, c.says)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a folder was created")
	}
}
