package program

import (
	"errors"
	"regexp"
	"slices"
	"strings"
)

// Rights returns what an ACL has to allow, as words of ACL SETUSER without the plus: the commands in the text of the
// program, those that run it as a function, and those that its client sends besides.
func (p *Program) Rights(besides ...string) []string {
	calls := regexp.MustCompile(`\bp?call(?:\(|, )'([A-Z]+)'(?:, '([A-Z]+)')?`)
	words := append([]string{"fcall", "function|load"}, besides...)
	for _, m := range calls.FindAllStringSubmatch(p.script, -1) {
		word := m[1]
		if word == "PUBSUB" { // has commands of its own
			word += "|" + m[2]
		}
		words = append(words, strings.ToLower(word))
	}
	slices.Sort(words)
	return slices.Compact(words)
}

// Missing returns which of the rights the user lacks whose keys and channels begin with the prefix, as words of ACL
// SETUSER. run calls the program, and sends its text along if load is set: see lua/common.lua. A program runs either as a
// function or as a script.
func Missing(rights []string, prefix string, run func(load bool, args []string) ([]Reply, error)) ([]string, error) {
	words := append([]string{"eval", "evalsha"}, rights...)
	args := []string{"rights"}
	for _, word := range words {
		args = append(args, sample(word, prefix))
	}
	denied, err := run(false, args)
	if errors.Is(err, ErrUnknown) {
		denied, err = run(true, args)
	}
	if err != nil {
		return nil, err
	}
	lacks := make(map[string]bool)
	for i, word := range words {
		lacks[word] = slices.ContainsFunc(denied, func(r Reply) bool { return r.S == args[1+i] })
	}
	if !lacks["eval"] && !lacks["evalsha"] {
		delete(lacks, "fcall")
		delete(lacks, "function|load")
	}
	var out []string
	if lacks["publish"] && lacks["subscribe"] {
		out = append(out, "&"+prefix+"*")
		delete(lacks, "publish")
		delete(lacks, "subscribe")
		delete(lacks, "unsubscribe")
	}
	for _, word := range rights {
		if lacks[word] {
			out = append(out, "+"+word)
		}
	}
	return out, nil
}

// sample returns a command that needs the right.
func sample(word, prefix string) string {
	command := strings.ReplaceAll(word, "|", " ")
	switch word {
	case "function|load", "info", "ping", "time", "config|get", "pubsub|channels", "wait":
		return command + " 1 1"
	case "fcall", "eval", "evalsha":
		return command + " x 1 " + prefix + "-"
	case "mget", "exists", "del", "unlink", "get", "subscribe", "unsubscribe":
		return command + " " + prefix + "-"
	case "mset": // more would be keys
		return command + " " + prefix + "- 1"
	default:
		return command + " " + prefix + "- 1 1"
	}
}

// Unnamed is the right that an error means which does not name it: that of Redis before 7.2 for a command
// in a program. See Missing for its name.
const Unnamed = "to send a command of its program"

// Missing returns the right for want of which a server has refused a command, as a word of ACL SETUSER,
// Unnamed, or "" if it was something else.
func (e *ServerError) Missing() string {
	switch {
	case e.Right != "":
		return e.Right
	case strings.Contains(e.Text, "executing the script can't run this command"):
		return Unnamed
	case e.Code != "NOPERM" && !strings.Contains(e.Text, "ACL failure in script"):
		return ""
	}
	_, rest, quoted := strings.Cut(e.Text, "the '")
	command, _, _ := strings.Cut(rest, "'")
	switch {
	case quoted && (command == "eval" || command == "evalsha" || command == "fcall"):
		return "+fcall +function|load" // it tried functions first
	case quoted:
		return "+" + command
	case strings.Contains(e.Text, "channel"):
		return "to the channels of its prefix (&)"
	default:
		return "to the keys of its prefix (~)"
	}
}
