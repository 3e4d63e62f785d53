package redislock_test

import (
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
)

// FuzzReply decodes answers that no script returns: nothing panics.
func FuzzReply(f *testing.F) {
	record := "sid\nx\n1\n17\n18\n0\n-\nchan\nowner\nnote"
	f.Add("name\x00#1\x00#7\x00[\x00[\x00lease\x00" + record + "\x00#5\x00]\x00]\x00[\x00]")
	f.Add("#17\x00#18\x00#0\x00w\x00#1")
	f.Add("#1\x00lease\treason\nother\t\x00[\x00OK\x00#1\x00#2\x00]")
	f.Add("HELD\x00#1\x00[\x00[\x00lease\x00" + record + "\x00#5\x00]\x00]")
	f.Add("LIMIT\x00#-1")
	f.Add("[\x00ERR\x00WRONGTYPE x\x00]\x00[\x00G\x00]")
	f.Add("QUARANTINE\x00#9223372036854775807")
	f.Fuzz(func(_ *testing.T, text string) {
		redislock.DecodeAll(parseReplies(strings.Split(text, "\x00")))
	})
}

// parseReplies converts words to an answer: "#n" is a number, "[" and "]" enclose a list.
func parseReplies(words []string) []redislock.Reply {
	stack := [][]redislock.Reply{nil}
	for _, w := range words {
		top := len(stack) - 1
		switch {
		case w == "[":
			stack = append(stack, nil)
		case w == "]" && top > 0:
			stack[top-1] = append(stack[top-1], redislock.List(stack[top]...))
			stack = stack[:top]
		case strings.HasPrefix(w, "#"):
			var n int64
			for _, c := range w[1:] {
				n = n*10 + int64(c-'0')
			}
			stack[top] = append(stack[top], redislock.Int(n))
		default:
			stack[top] = append(stack[top], redislock.Text(w))
		}
	}
	return stack[0]
}

// FuzzPush parses messages that any client may have published.
func FuzzPush(f *testing.F) {
	for _, payload := range []string{
		"g\nlease\n17\n18\n1", "d\nlease\nS", "a\nlease\nsid", "l\nsid\nlease\nbroken\nwhy", "t\nname\n1000", "f", "", "\n", "t\nname\n-1",
		"t\nname\n9223372036854775807", "acquired\nname\nlease\nowner\nx\n17\n18\nreason",
	} {
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		redislock.ParsePush(payload)
		e, ok := redislock.ParseEvent(payload)
		if ok && (strings.Contains(e.Name, "\n") || e.Mode != backend.Exclusive && e.Mode != backend.Shared) {
			t.Errorf("%q is %+v", payload, e)
		}
	})
}
