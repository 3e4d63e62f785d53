package program

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Rights returns what an ACL has to allow for the program, as words of ACL SETUSER without the plus: the
// commands in its text, and those that run it as a function.
func (p *Program) Rights() []string {
	calls := regexp.MustCompile(`\bcall(?:\(|, )'([A-Z]+)'(?:, '([A-Z]+)')?`)
	words := map[string]bool{"fcall": true, "function|load": true}
	for _, m := range calls.FindAllStringSubmatch(p.script, -1) {
		word := m[1]
		if word == "PUBSUB" { // has commands of its own
			word += "|" + m[2]
		}
		words[strings.ToLower(word)] = true
	}
	return slices.Sorted(maps.Keys(words))
}

// Audit checks rights on a server: see Program.Rights.
type Audit struct {
	words    []string
	commands []string
	channels string
}

// NewAudit returns the check of these words for a user whose keys and channels begin with the prefix.
func NewAudit(words []string, prefix string) Audit {
	a := Audit{words: append([]string{"eval", "evalsha"}, words...), channels: "&" + prefix + "*"}
	for _, word := range a.words {
		command := strings.ReplaceAll(word, "|", " ")
		switch word {
		case "function|load", "info", "ping", "time", "config|get", "pubsub|channels", "wait":
			command += " 1 1"
		case "fcall", "eval", "evalsha":
			command += " x 1 " + prefix + "-"
		case "mset":
			command += " " + prefix + "- 1"
		case "mget", "exists", "del", "unlink", "get", "subscribe", "unsubscribe":
			command += " " + prefix + "-"
		default:
			command += " " + prefix + "- 1 1"
		}
		a.commands = append(a.commands, command)
	}
	return a
}

// Args returns the arguments of a call of the program that checks the rights: see lua/rights.lua. The
// answer is a list of texts.
func (a *Audit) Args() []string { return append([]string{"rights"}, a.commands...) }

// Missing returns the rights that are missing, as words of ACL SETUSER, for those commands that the server
// denies. A program runs either as a function or as a script.
func (a *Audit) Missing(denied []string) []string {
	lacks := make(map[string]bool)
	for i, command := range a.commands {
		lacks[a.words[i]] = slices.Contains(denied, command)
	}
	if !lacks["eval"] && !lacks["evalsha"] {
		delete(lacks, "fcall")
		delete(lacks, "function|load")
	}
	delete(lacks, "eval")
	delete(lacks, "evalsha")
	var out []string
	if lacks["publish"] && lacks["subscribe"] {
		out = append(out, a.channels)
		delete(lacks, "publish")
		delete(lacks, "subscribe")
		delete(lacks, "unsubscribe")
	}
	for _, word := range a.words {
		if lacks[word] {
			out = append(out, "+"+word)
		}
	}
	return out
}

// Unnamed is the right that an error means which does not name it: that of Redis before 7.2 for a command
// in a program. See Audit for its name.
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
