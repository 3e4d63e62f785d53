package redislock

import (
	"embed"
	"fmt"

	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

//go:embed lua/*.lua
var sources embed.FS

// newProgram returns the program that the server runs. See the folder lua.
func newProgram() (program.Program, error) {
	p, err := program.New(sources,
		"head", "marker", "short", "state", "queue", "sweep", "acquire", "release", "hello", "session", "admin", "main")
	if err != nil {
		return p, fmt.Errorf("redislock: %w", err)
	}
	return p, nil
}
