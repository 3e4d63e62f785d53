package redislock

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed lua/*.lua
var scripts embed.FS

// script is the text that the server runs: the files of the folder lua, in an order in
// which everything is defined before it is used. It is static: what differs between
// calls travels in KEYS and ARGV.
func script() (string, error) {
	var b strings.Builder
	for _, part := range []string{
		"head", "state", "line", "sweep", "marker", "acquire", "release", "hello", "session", "admin", "main",
	} {
		text, err := scripts.ReadFile("lua/" + part + ".lua")
		if err != nil {
			return "", fmt.Errorf("redislock: %w", err)
		}
		b.Write(text)
	}
	return b.String(), nil
}
