package cli_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// The doctor distinguishes all nodes of Redlock from a majority of them, and that from none.
func TestDoctor(t *testing.T) {
	t.Parallel()
	const three = 3
	nodes := testserver.RedisNodes(t, three)
	url := "redlock://" + testserver.RedisAddrs(nodes) + "?quarantine=off&timeout=5s"
	says := func(health string, status int, found string) {
		t.Helper()
		var got result
		await(t, time.Minute, health, func() bool { // a slow machine is degraded, too
			got = run(t, command(t, url, "doctor", "--json"))
			return strings.Contains(got.out, `"`+health+`"`)
		})
		var v struct{ Found []string }
		if err := json.Unmarshal([]byte(got.out), &v); err != nil || got.status != status {
			t.Errorf("%v: %+v, want status %d", err, got, status)
		}
		if !strings.Contains(strings.Join(v.Found, "\n"), found) {
			t.Errorf("found %q, want %q", v.Found, found)
		}
	}
	says("healthy", 0, "")
	nodes[2].Kill()
	says("degraded", 1, "node 3 of 3 is unavailable")
	if got := run(t, command(t, url, "doctor")); got.status != 1 || !strings.Contains(got.out, "degraded") || !strings.Contains(got.out, "node 3 of 3 is unavailable") {
		t.Errorf("%+v", got)
	}
	nodes[1].Kill()
	says("unhealthy", 74, "")
	if got := run(t, command(t, url, "doctor")); got.status != 74 || !strings.Contains(got.out, "unhealthy") || !strings.Contains(got.stderr, "unavailable") {
		t.Errorf("%+v", got)
	}
}

// A user of Redis that lacks one word of the rights which the page gives: the doctor names the word, and says where the
// rights are. What the lack stops decides the exit status.
func TestDoctorNamesAMissingRight(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	user, words := leasetest.RedisUser(t, "redis.md")
	s := testserver.Redis(t, append([]string{"--user", user}, words...)...)
	url := "redis://" + user + ":choose-one@" + s.Addr() + "?quarantine=off&timeout=5s"
	says := func(word string, status ...int) {
		t.Helper()
		var got result
		defer func() {
			if t.Failed() {
				t.Logf("without %q: %+v; want a status of %d, and the word", word, got, status)
			}
		}()
		await(t, 2*time.Minute, "the doctor names "+word, func() bool { // a slow machine is degraded, too, or has no answer
			got = run(t, command(t, url, "doctor"))
			text := got.out + got.stderr
			return slices.Contains(status, got.status) && strings.Contains(text, word) && strings.Contains(text, "Least rights") == (word != "")
		})
		if health := map[int]string{0: "healthy", 1: "degraded", 74: "unhealthy"}[got.status]; !slices.Contains(strings.Fields(got.out), health) {
			t.Errorf("without %q: %+v; want that it is %s", word, got, health)
		}
	}
	for word, status := range map[string]int{"+zadd": 74, "+fcall": 74, "+publish": 1, "&{hf0}:*": 74, "~{hf0}:*": 74} {
		if !slices.Contains(words, word) {
			t.Fatalf("the page does not give %s", word)
		}
		without := map[byte]string{'~': "resetkeys", '&': "resetchannels", '+': "-" + word[1:]}[word[0]]
		s.Do("ACL", "SETUSER", user, without)
		says(strings.TrimSuffix(word, "{hf0}:*"), status)
		s.Do("ACL", "SETUSER", user, word)
	}
	says("", 0, 1) // degraded: the machine is slow, and no right is missing
}
