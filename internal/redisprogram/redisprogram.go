// Package redisprogram runs a program of ours on a Redis server: as a function of it, which
// is read once, or where the server has no functions, or does not take ours, as a script.
// It also has the errors of such a call, and the sorting of operations into batches. It is
// what redislock and redlock have in common.
package redisprogram

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
	"time"

	"github.com/redis/rueidis"
)

//go:embed lua/*.lua
var ends embed.FS

// Program is what the server runs, in its two forms. It is static: what differs between
// calls travels in KEYS and ARGV. The Lua text defines begin(keys, args, full), which sets
// what belongs to one execution, and execute(remembers), which gives the answer. full says
// that the memory of the server is full and nothing may be added; remembers, that what is
// defined stays until the server's process ends.
type Program struct {
	function string // the name of the function, and of the library that has it
	library  string // its text
	script   string // the text that does the same without being kept
}

// New puts files of a folder lua into this order, in which everything has to be defined
// before it is used. The name of the function is made of the text, so that versions of
// Holdfast which differ in it do not meet.
func New(sources fs.FS, parts ...string) (Program, error) {
	var b strings.Builder
	for _, part := range parts {
		text, err := fs.ReadFile(sources, "lua/"+part+".lua")
		if err != nil {
			return Program{}, fmt.Errorf("redisprogram: %w", err)
		}
		b.Write(text)
	}
	body := b.String()
	script, err := ends.ReadFile("lua/script.lua")
	if err != nil {
		return Program{}, fmt.Errorf("redisprogram: %w", err)
	}
	function, err := ends.ReadFile("lua/function.lua")
	if err != nil {
		return Program{}, fmt.Errorf("redisprogram: %w", err)
	}
	const digits = 12
	p := Program{script: body + string(script)}
	p.function = "holdfast_" + hash(body + string(function))[:digits]
	p.library = "#!lua name=" + p.function + "\n" + body + strings.ReplaceAll(string(function), "NAME", p.function)
	return p, nil
}

// Function is the name of the function.
func (p *Program) Function() string { return p.function }

// ScriptFor is the script for data of an identity. It differs by a remark, so that it has
// a name of its own: a process of the server that was not greeted for that data does not
// know it.
func (p *Program) ScriptFor(identity string) string { return p.script + "-- " + identity + "\n" }

func hash(text string) string {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // see the import
	return hex.EncodeToString(sum[:])
}

// ErrUnknown says that the server does not know the program.
var ErrUnknown = errors.New("the program is not loaded")

// ServerError is an answer of a server that is an error.
type ServerError struct {
	Code string // its first word: "WRONGTYPE"
	Text string // all of it
}

// Error is what the server said.
func (e *ServerError) Error() string { return "redis: " + e.Text }

// NewServerError reads what a server said. rueidis has taken the ERR off the texts that
// begin with it.
func NewServerError(text string) *ServerError {
	code, _, _ := strings.Cut(text, " ")
	return &ServerError{Code: code, Text: text}
}

// FromRueidis tells the answers of the server, *ServerError or ErrUnknown, from everything
// else: then it is not known what became of the command.
func FromRueidis(err error) error {
	if err == nil {
		return errors.New("redis: the connection was closed")
	}
	re, ok := rueidis.IsRedisErr(err)
	if !ok {
		return fmt.Errorf("redis: %w", err)
	}
	if re.IsNoScript() || strings.HasPrefix(re.Error(), "Function not found") {
		return ErrUnknown
	}
	return NewServerError(re.Error())
}

// Undated is the context without its deadline. With a deadline and nothing else under way
// rueidis reads the answer in the calling goroutine, where the end of the context is not
// seen before the deadline.
func Undated(ctx context.Context) context.Context { return undated{ctx} }

type undated struct {
	context.Context //nolint:containedctx // it is a context
}

// Deadline says that there is none.
func (undated) Deadline() (time.Time, bool) { return time.Time{}, false }

// Runner runs a program on one server. Its methods may be called at once.
type Runner struct {
	program Program
	scripts atomic.Bool // the server takes no functions, or none of ours

	mu       sync.Mutex
	identity string // the data that the script of that hash is for
	hash     string
}

// NewRunner makes one that has asked nothing yet.
func NewRunner(p Program) *Runner { return &Runner{program: p} }

// Send sends a command, once. Its errors are those of FromRueidis.
type Send func(ctx context.Context, cmd rueidis.Completed) (rueidis.RedisMessage, error)

// Run executes the program. With load set its text is sent along, for a server that has
// said ErrUnknown. It never retries what may have been executed.
func (r *Runner) Run(ctx context.Context, b rueidis.Builder, send Send, load bool, identity, key string, args []string) (rueidis.RedisMessage, error) {
	if !r.scripts.Load() {
		m, err := r.call(ctx, b, send, load, key, args)
		if !unable(err) {
			return m, err
		}
		r.scripts.Store(true)
	}
	if load {
		return send(ctx, b.Eval().Script(r.program.ScriptFor(identity)).Numkeys(1).Key(key).Arg(args...).Build())
	}
	return send(ctx, b.Evalsha().Sha1(r.hashFor(identity)).Numkeys(1).Key(key).Arg(args...).Build())
}

// call calls the function. A server whose memory is full refuses it, and is asked for the
// one that adds nothing.
func (r *Runner) call(ctx context.Context, b rueidis.Builder, send Send, load bool, key string, args []string) (rueidis.RedisMessage, error) {
	if load {
		_, err := send(ctx, b.FunctionLoad().FunctionCode(r.program.library).Build())
		if refused, ok := errors.AsType[*ServerError](err); ok && strings.Contains(refused.Text, "already exists") {
			err = nil // somebody was faster
		}
		if err != nil {
			return rueidis.RedisMessage{}, err
		}
	}
	m, err := send(ctx, b.Fcall().Function(r.program.function).Numkeys(1).Key(key).Arg(args...).Build())
	if refused, ok := errors.AsType[*ServerError](err); ok && refused.Code == "OOM" {
		return send(ctx, b.Fcall().Function(r.program.function+"_full").Numkeys(1).Key(key).Arg(args...).Build())
	}
	return m, err
}

// unable reports whether the server does not take functions from us: it is older than
// Redis 7, or another that has none, or the user may not.
func unable(err error) bool {
	refused, ok := errors.AsType[*ServerError](err)
	return ok && (refused.Code == "NOPERM" || strings.HasPrefix(refused.Text, "unknown command"))
}

func (r *Runner) hashFor(identity string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hash == "" || r.identity != identity {
		r.identity, r.hash = identity, hash(r.program.ScriptFor(identity))
	}
	return r.hash
}
