package redislock

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by it; nothing rests on its strength
	"embed"
	"encoding/hex"
	"fmt"
	"strings"
)

//go:embed lua/*.lua
var sources embed.FS

// program is what the server runs, in its two forms. It is static: what differs between
// calls travels in KEYS and ARGV.
type program struct {
	function string // the name of the function, and of the library that has it
	library  string // its text
	script   string // the text that does the same without being kept
}

// newProgram puts the files of the folder lua into an order in which everything is
// defined before it is used. The name is made of the text, so that versions of Holdfast
// which differ in it do not meet.
func newProgram() (program, error) {
	var b strings.Builder
	for _, part := range []string{
		"head", "state", "line", "sweep", "marker", "acquire", "release", "hello", "session", "admin", "main",
	} {
		if err := source(&b, part); err != nil {
			return program{}, err
		}
	}
	body := b.String()
	var script, function strings.Builder
	if err := source(&script, "script"); err != nil {
		return program{}, err
	}
	if err := source(&function, "function"); err != nil {
		return program{}, err
	}
	const digits = 12
	p := program{script: body + script.String()}
	p.function = "holdfast_" + hash(body + function.String())[:digits]
	p.library = "#!lua name=" + p.function + "\n" + body + strings.ReplaceAll(function.String(), "NAME", p.function)
	return p, nil
}

func source(b *strings.Builder, part string) error {
	text, err := sources.ReadFile("lua/" + part + ".lua")
	if err != nil {
		return fmt.Errorf("redislock: %w", err)
	}
	b.Write(text)
	return nil
}

// scriptFor is the script for data of an identity. It differs by a remark, so that it has
// a name of its own: a process of the server that was not greeted for that data does not
// know it.
func (p *program) scriptFor(identity string) string { return p.script + "-- " + identity + "\n" }

func hash(text string) string {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // see the import
	return hex.EncodeToString(sum[:])
}
