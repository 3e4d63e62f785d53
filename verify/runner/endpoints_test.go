package runner_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/verify/runner"
)

func TestShownHasNoSecret(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://h:1":                             "redis://h:1",
		"redis://u:p%40ss@h:1/x?quarantine=off":   "redis://u:xxxxx@h:1/x?quarantine=off",
		"redis://:p@ss@h":                         "redis://:xxxxx@h",
		"etcd://a:1,b:2?password=x&user=u":        "etcd://a:1,b:2?password=xxxxx&user=u",
		"holdfast://token@h:1?Auth_Token=a&x":     "holdfast://xxxxx:xxxxx@h:1?Auth_Token=xxxxx&x",
		"sqlite:///var/lib/locks.db":              "sqlite:///var/lib/locks.db",
		"memory://":                               "memory://",
		"no URL at all":                           "URL",
		"zookeeper://h1,h2/path?digest_secret=ab": "zookeeper://h1,h2/path?digest_secret=xxxxx",
	} {
		if got := runner.Shown(url); got != want {
			t.Errorf("%s: got %s, want %s", url, got, want)
		}
	}
}
