package redlock

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

func FuzzURL(f *testing.F) {
	leasetest.FuzzURL(f, func(raw string) error {
		got, err := parseURL(raw, Config{})
		if err == nil && (len(got.options) < MinNodes || got.cfg.MaxTTL <= 0) {
			err = fmt.Errorf("parsed as %+v", got)
		}
		return err
	},
		"redlock://a,b,c", "redlock://a:1,b:2,[::1]:3/2?max_ttl=10s&quarantine=off", "redlocks://u:p@a,b,c?server_name=s", "redlock://a,b", "redlock://a,a,a", "redlock://a,b,c?ca=/x", "redlock://a,b,c/x", "redlock://a,b,c?timeout=1")
}

// FuzzAnswer decodes answers that no script of ours returns: nothing panics, and no number is
// negative.
func FuzzAnswer(f *testing.F) {
	record := "3\nx\n1\n0\n17\n1\n99\n5\nowner\nnote"
	for _, s := range []string{
		"G\x00#7\x0060000000\x005\x001\x00#0", "H\x00#9\x00#1\x00[\x00[\x00lease\x00" + record + "\x00]\x00]", "Q\x00-5", "Q\x005\x00#1", "L", "S\x0018446744073709551616", "",
		"OK\x00[\x00R\x00#7\x001\x00s\x003\x00]", "H\x00#9\x00#1\x00[\x00[\x00lease\x00x\ny\x00]\x00]",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list := answerOfWords(strings.Split(text, "\x00"))
		bal := &ballot{p: &poll{errs: make([]error, 1)}, got: make([]*ticket, 1), others: make([][]vote, 1)}
		bal.take(answer{list: list})
		if x := bal.got[0]; x != nil && (x.left < 0 || bal.p.errs[0] != nil) {
			t.Errorf("%q is the vote %+v, %v", text, x, bal.p.errs[0])
		}
		for _, v := range bal.others[0] {
			if v.Left < 0 || v.Permits < 0 || v.limit < 0 {
				t.Errorf("%q has the vote %+v", text, v)
			}
		}
		all := make([]renewal, 1)
		if err := note(new(decode(list)), &Backend{nodes: make([]*node, 3), majority: 2}, all); err == nil && all[0].n > 1 {
			t.Errorf("%q: %+v", text, all)
		}
	})
}

// answerOfWords converts words to an answer: "#n" is a number, "[" and "]" enclose a list.
func answerOfWords(words []string) []program.Reply {
	stack := [][]program.Reply{nil}
	for _, w := range words {
		top := len(stack) - 1
		switch {
		case w == "[":
			stack = append(stack, nil)
		case w == "]" && top > 0:
			stack[top-1] = append(stack[top-1], program.List(stack[top]...))
			stack = stack[:top]
		case strings.HasPrefix(w, "#"):
			var n int64
			for _, c := range w[1:] {
				n = n*10 + int64(c-'0')
			}
			stack[top] = append(stack[top], program.Int(n))
		default:
			stack[top] = append(stack[top], program.Text(w))
		}
	}
	return stack[0]
}
