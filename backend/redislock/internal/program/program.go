// Package program runs a program of ours on a Redis server: as a function, which is read
// once, or as a script if the server has no functions or does not accept ours. It also
// defines the errors of such a call, and what a client library has to do for it. It is what
// redislock, its adapters and redlock have in common.
package program

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by it; nothing rests on its strength
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
)

//go:embed lua/*.lua
var ends embed.FS

// Program is what the server runs, in its two forms. It is static: what differs between calls
// is passed in KEYS and ARGV. The Lua text defines begin(keys, args, full), which sets what
// belongs to one execution, and execute(remembers), which returns the answer. full means that
// the memory of the server is full and nothing may be added; remembers, that what is defined
// stays until the server's process ends.
type Program struct {
	function string // the name of the function, and of its library
	library  string // its text
	script   string // the text that does the same without being kept
	full     string // the script for a server whose memory is full
}

// New concatenates files of a folder lua in this order, in which everything must be defined
// before it is used. The name of the function is derived from the text, so that versions of
// Holdfast with different texts do not collide.
func New(sources fs.FS, parts ...string) (Program, error) {
	var errs []error
	text := func(from fs.FS, name string) string {
		t, err := fs.ReadFile(from, "lua/"+name+".lua")
		errs = append(errs, err)
		return string(t)
	}
	all := []string{text(ends, "common")}
	for _, part := range parts {
		all = append(all, text(sources, part))
	}
	body := strings.Join(all, "")
	function, script := text(ends, "function"), text(ends, "script")
	if err := errors.Join(errs...); err != nil {
		return Program{}, fmt.Errorf("program: %w", err)
	}
	const digits = 12
	name := "holdfast_" + hash(body + function)[:digits]
	return Program{
		function: name,
		library:  "#!lua name=" + name + "\n" + body + strings.ReplaceAll(function, "NAME", name),
		script:   "#!lua\n" + body + strings.ReplaceAll(script, "FULL", "false"),
		full:     "#!lua flags=allow-oom\n" + body + strings.ReplaceAll(script, "FULL", "true"),
	}, nil
}

// Function returns the name of the function.
func (p *Program) Function() string { return p.function }

// scriptFor returns a script for data of an identity. Scripts differ by a comment, so that each has a name of its own: a
// server process that was not greeted for that data does not know its script.
func (p *Program) scriptFor(identity string, full bool) string {
	text := p.script
	if full {
		text = p.full
	}
	return text + "-- " + identity + "\n"
}

func hash(text string) string {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // see the import
	return hex.EncodeToString(sum[:])
}

// ErrUnknown means that the server does not know the program.
var ErrUnknown = errors.New("the program is not loaded")

// ServerError is an error answered by a server.
type ServerError struct {
	Code string // its first word: "WRONGTYPE"
	Text string // all of it
	// Right is the missing right that the text does not name: see Missing. Empty if unknown.
	Right string
}

// Error returns the text of the server, after "redis: ".
func (e *ServerError) Error() string { return "redis: " + e.Text }

const needsPassword = "give a password, and a user unless it is the default one: in the URL, or to the client that you made"

// Remedy returns what to change where the server refuses this client until that is
// changed, or "".
func (e *ServerError) Remedy() string {
	switch e.Code {
	case "NOAUTH":
		return needsPassword
	case "WRONGPASS":
		return "correct the user and the password"
	case "NOPERM":
		return "allow the user the keys, channels and commands that the page of this store names"
	case "DENIED":
		return "set a password on the server, or turn its protected mode off"
	}
	switch {
	case strings.HasPrefix(e.Text, "Protocol error: unauthenticated"): // to a long command, in place of NOAUTH
		return needsPassword
	case strings.Contains(e.Text, "DB index is out of range"), strings.Contains(e.Text, "SELECT is not allowed in cluster mode"):
		return "name a database that the server has: 0 to one less than its setting databases"
	case strings.Contains(e.Text, "without any password configured"), strings.HasPrefix(e.Text, "invalid password"),
		strings.Contains(e.Text, "no password is set"):
		return "correct the user and the password"
	}
	return ""
}

// Unexecuted reports whether the server has changed nothing. In a script the codes about writing are returned at
// its first write.
func (e *ServerError) Unexecuted() bool {
	switch e.Code {
	case "LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "MASTERDOWN", "NOREPLICAS", "MISCONF", "BUSY",
		"NOAUTH", "NOPERM", "WRONGPASS", "NOSCRIPT", "OOM", "MAXCLIENTS", "HFFORMAT":
		return true
	default:
		return e.Remedy() == needsPassword
	}
}

// NewServerError parses an error of a server, without the ERR that some begin with.
func NewServerError(text string) *ServerError {
	code, _, _ := strings.Cut(text, " ")
	if strings.HasPrefix(text, "max number of clients") {
		code = "MAXCLIENTS" // Redis has no code for it
	}
	return &ServerError{Code: code, Text: text}
}

// FromServer returns the error of a server with that text: ErrUnknown, or a *ServerError.
func FromServer(text string) error {
	text = strings.TrimPrefix(text, "ERR ")
	if strings.HasPrefix(text, "NOSCRIPT") || strings.HasPrefix(text, "Function not found") {
		return ErrUnknown
	}
	return NewServerError(text)
}

// Runner runs a program on one server. Its methods are safe for concurrent use.
type Runner struct {
	program Program
	scripts atomic.Bool // the server accepts no functions, or none of ours

	mu       sync.Mutex
	identity string          // the data that the scripts are for
	hashes   map[bool]string // of the two scripts, by whether the memory is full
}

// NewRunner returns a Runner that has sent nothing yet.
func NewRunner(p Program) *Runner { return &Runner{program: p} }

// Run executes the program on the server that send reaches. With load set its text is sent along, for a server that has
// returned ErrUnknown. It never retries what may have been executed.
func (r *Runner) Run(ctx context.Context, send Send, load bool, identity, key string, args []string) (Reply, error) {
	if !r.scripts.Load() {
		m, err := r.call(ctx, send, load, key, args)
		if !unable(err) {
			return m, err
		}
		r.scripts.Store(true)
	}
	m, err := r.eval(ctx, send, load, false, identity, key, args)
	if isFull(err) {
		return r.eval(ctx, send, load, true, identity, key, args)
	}
	return m, err
}

// eval runs one of the two scripts.
func (r *Runner) eval(ctx context.Context, send Send, load, full bool, identity, key string, args []string) (Reply, error) {
	if load {
		return send(ctx, words("EVAL", r.program.scriptFor(identity, full), key, args)...)
	}
	return send(ctx, words("EVALSHA", r.hashFor(identity, full), key, args)...)
}

// isFull reports whether the server refused the program because its memory is full. Then it is sent the form that adds nothing.
func isFull(err error) bool {
	refused, ok := errors.AsType[*ServerError](err)
	return ok && refused.Code == "OOM"
}

// call calls the function.
func (r *Runner) call(ctx context.Context, send Send, load bool, key string, args []string) (Reply, error) {
	p := &r.program
	if load {
		m, err := send(ctx, "FUNCTION", "LOAD", p.library)
		if refused, ok := errors.AsType[*ServerError](err); ok && strings.Contains(refused.Text, "already exists") {
			err = nil // another client was faster
		}
		if err != nil {
			return m, err
		}
	}
	m, err := send(ctx, words("FCALL", p.function, key, args)...)
	if isFull(err) {
		return send(ctx, words("FCALL", p.function+"_full", key, args)...)
	}
	return m, err
}

// words returns a command that takes one key.
func words(name, text, key string, args []string) []string {
	const head = 4
	return append(append(make([]string, 0, head+len(args)), name, text, "1", key), args...)
}

// unable reports whether the server does not accept functions from us: it has none, or
// the user lacks the permission.
func unable(err error) bool {
	refused, ok := errors.AsType[*ServerError](err)
	return ok && (refused.Code == "NOPERM" && strings.HasPrefix(refused.Missing(), "+") || strings.HasPrefix(refused.Text, "unknown command"))
}

func (r *Runner) hashFor(identity string, full bool) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hashes == nil || r.identity != identity {
		r.identity, r.hashes = identity, make(map[bool]string)
	}
	if r.hashes[full] == "" {
		r.hashes[full] = hash(r.program.scriptFor(identity, full))
	}
	return r.hashes[full]
}
