package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// TestReadmeProgram: the program of the README, with go-redis and without, by the commands that it prints, in a folder
// beside a clone.
func TestReadmeProgram(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```(?:go)?\n(.*?)^```").FindAllStringSubmatch(string(page), 2)
	if len(blocks) < 2 || !strings.Contains(blocks[1][1], "go run") {
		t.Fatalf("README.md does not begin with a program and the commands that run it: %q", blocks)
	}
	program, commands := blocks[0][1], blocks[1][1]
	server := testserver.Redis(t)
	without := edit(t, program, map[string]string{
		`(?m)^\t"github.com/redis/go-redis/v9"\n\n`:                                         "",
		`(?m)^\t"github.com/holdfast-io/holdfast/backend/redislock/(goredis|redisfence)"\n`: "",
		`(?s)\tclient := redis.NewClient.*?\tstore, err := goredis.New\(.*?\n`:              "\tstore, err := redislock.Open(ctx, \"redis://localhost:6379\", redislock.Config{})\n",
		`(?m)^\torders := .*\n`:             "",
		`(?m)return orders.Set\(.*?\) //.*`: "return nil",
	})
	for name, text := range map[string]string{"with go-redis": program, "with one store": without} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			shop := filepath.Join(dir, "shop")
			if err := os.Mkdir(shop, 0o700); err != nil {
				t.Fatal(err)
			}
			clone, err := filepath.Abs(root)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(clone, filepath.Join(dir, "holdfast")); err != nil {
				t.Fatal(err)
			}
			text := edit(t, text, map[string]string{"localhost:6379": server.Addr()})
			if err := os.WriteFile(filepath.Join(shop, "main.go"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", commands)
			cmd.Dir = shop
			cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "GOWORK=") || strings.HasPrefix(e, "GOFLAGS=") })
			out, err := cmd.Output()
			if err != nil || !regexp.MustCompile(`^charging with token [1-9][0-9]*\n$`).Match(out) {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	t.Cleanup(func() {
		if state := server.Do("GET", "order:123:state"); fmt.Sprint(state) != "charged" {
			t.Errorf("the guarded key is %v", state)
		}
	})
}

// edit replaces what each pattern matches, which has to be there.
func edit(t *testing.T, text string, by map[string]string) string {
	t.Helper()
	for pattern, fresh := range by {
		rx := regexp.MustCompile(pattern)
		if !rx.MatchString(text) {
			t.Fatalf("there is no %s in the program of the README", pattern)
		}
		text = rx.ReplaceAllLiteralString(text, fresh)
	}
	return text
}
