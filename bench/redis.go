package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/bench"
)

// redisEngine returns the engine at a URL of redislock. The bare commands use only host, port, user,
// password and database.
func redisEngine(ctx context.Context, raw string) (*bench.Engine, error) {
	option, err := redisOption(raw)
	if err != nil {
		return nil, err
	}
	client, err := rueidis.NewClient(option)
	if err != nil {
		return nil, &backend.UnavailableError{Backend: "redis", Op: "connect", Err: err}
	}
	e := &bench.Engine{
		Name: "redis", URL: raw,
		Contenders: []bench.Contender{ours(), rawRedis("raw", del), rawRedis("raw compare", delIfEqual()), overGoRedis(), redsyncOne(), bsmRedislock(), rueidisLock(), redisLoop()},
		Ping:       func(ctx context.Context) error { return client.Do(ctx, client.B().Ping().Build()).Error() },
		Close:      func() error { client.Close(); return nil },
	}
	info, err := client.Do(ctx, client.B().Info().Section("server").Build()).ToString()
	if err != nil {
		client.Close()
		return nil, &backend.UnavailableError{Backend: "redis", Op: "info", Err: err}
	}
	e.Version = infoField(info, "redis_version")
	if option.TLSConfig == nil { // the monitor speaks no TLS
		e.Meter = func(ctx context.Context) (func() (bench.Load, error), error) { return meterRedis(ctx, client, option) }
	}
	return e, nil
}

// redisOption returns the options of rueidis for a URL, with its own defaults otherwise.
func redisOption(raw string) (rueidis.ClientOption, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return rueidis.ClientOption{}, &backend.InvalidError{Field: "backend", Value: `"redis://…"`, Bound: "a URL that can be parsed"}
	}
	u.RawQuery = "" // only our client knows the parameters
	option, err := rueidis.ParseURL(u.String())
	if err != nil { // its error may contain the password
		return rueidis.ClientOption{}, &backend.InvalidError{Field: "backend", Value: `"redis://…"`, Bound: "redis://user:password@host:port/database"}
	}
	option.ForceSingleClient = true
	return option, nil
}

func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return value
		}
	}
	return ""
}

// rawRedis is two commands through the client library that redislock uses: SET NX PX, and what
// deletes the key. A lock has no token and no queue, and the caller cannot wait. The DEL would also
// delete another owner's lock: it is a limit, not a lock.
func rawRedis(name string, end func(c rueidis.Client, key, value string) func(context.Context) error) bench.Contender {
	return bench.Contender{Name: name, Kind: bench.KindRaw, Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		option, err := redisOption(cfg.URL)
		if err != nil {
			return nil, err
		}
		client, err := rueidis.NewClient(option)
		if err != nil {
			return nil, &backend.UnavailableError{Backend: "redis", Op: "connect", Err: err}
		}
		return &rawRedisLocker{client: client, ttl: cfg.TTL.Milliseconds(), end: end}, nil
	}}
}

type rawRedisLocker struct {
	client rueidis.Client
	ttl    int64
	end    func(c rueidis.Client, key, value string) func(context.Context) error
}

// del deletes the key, whatever its value is.
func del(c rueidis.Client, key, _ string) func(context.Context) error {
	return func(ctx context.Context) error { return c.Do(ctx, c.B().Del().Key(key).Build()).Error() }
}

// delIfEqual deletes the key if it has the value, with the script that lock libraries have for that.
func delIfEqual() func(c rueidis.Client, key, value string) func(context.Context) error {
	script := rueidis.NewLuaScript(`return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0`)
	return func(c rueidis.Client, key, value string) func(context.Context) error {
		return func(ctx context.Context) error {
			n, err := script.Exec(ctx, c, []string{key}, []string{value}).AsInt64()
			if err == nil && n != 1 {
				err = errors.New("the key had another value")
			}
			return err
		}
	}
}

var errTaken = errors.New("the lock is taken, and the bare commands do not wait")

func (l *rawRedisLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	value := string(backend.NewLeaseID())
	err := l.client.Do(ctx, l.client.B().Set().Key(name).Value(value).Nx().PxMilliseconds(l.ttl).Build()).Error()
	if rueidis.IsRedisNil(err) {
		return bench.Held{}, errTaken
	}
	if err != nil {
		return bench.Held{}, fmt.Errorf("SET: %w", err)
	}
	return bench.Held{Unlock: l.end(l.client, name, value)}, nil
}

func (l *rawRedisLocker) Close(context.Context) error {
	l.client.Close()
	return nil
}

// meterRedis counts the requests with MONITOR, where the commands of scripts are marked, and the
// executed commands with INFO, where they are not.
func meterRedis(ctx context.Context, client rueidis.Client, option rueidis.ClientOption) (func() (bench.Load, error), error) {
	m, err := monitor(ctx, option)
	if err != nil {
		return nil, err
	}
	before, err := commandCalls(ctx, client)
	if err != nil {
		return nil, errors.Join(err, m.conn.Close())
	}
	return func() (bench.Load, error) {
		after, err := commandCalls(ctx, client)
		if err != nil {
			return bench.Load{}, errors.Join(err, m.conn.Close())
		}
		// The commands after this one are not counted.
		token := string(backend.NewLeaseID())
		err = client.Do(ctx, client.B().Echo().Message(token).Build()).Error()
		if err != nil {
			return bench.Load{}, errors.Join(fmt.Errorf("ECHO: %w", err), m.conn.Close())
		}
		requests, err := m.until(token)
		// The two INFO commands are the meter's own.
		return bench.Load{Requests: requests - 2, Commands: after - before - 1}, err
	}, nil
}

// commandCalls returns how many commands the server has executed, including those in scripts.
func commandCalls(ctx context.Context, client rueidis.Client) (int64, error) {
	info, err := client.Do(ctx, client.B().Info().Section("commandstats").Build()).ToString()
	if err != nil {
		return 0, fmt.Errorf("INFO: %w", err)
	}
	var sum int64
	for line := range strings.Lines(info) {
		_, counts, ok := strings.Cut(line, ":calls=")
		if !ok {
			continue
		}
		var calls int64
		if _, err := fmt.Sscanf(counts, "%d,", &calls); err != nil {
			return 0, fmt.Errorf("INFO commandstats: %w", err)
		}
		sum += calls
	}
	return sum, nil
}

// monitoring is a connection on which the server reports every command.
type monitoring struct {
	conn net.Conn
	told chan string // tokens of ECHO, and "" at the end
	sum  int64       // requests before the token; read after told
	err  error
}

func monitor(ctx context.Context, option rueidis.ClientOption) (*monitoring, error) {
	if option.DialCtxFn != nil {
		return nil, fmt.Errorf("counting requests of Redis: %w", errors.ErrUnsupported)
	}
	network := "tcp"
	if strings.HasPrefix(option.InitAddress[0], "/") {
		network = "unix"
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, option.InitAddress[0])
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	m := &monitoring{conn: conn, told: make(chan string)}
	r := bufio.NewReaderSize(conn, 1<<20)
	var commands []string
	if option.Password != "" {
		user := option.Username
		if user == "" {
			user = "default"
		}
		commands = append(commands, fmt.Sprintf("*3\r\n$4\r\nAUTH\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(user), user, len(option.Password), option.Password))
	}
	for _, command := range append(commands, "*1\r\n$7\r\nMONITOR\r\n") {
		if _, err := conn.Write([]byte(command)); err != nil {
			return nil, errors.Join(fmt.Errorf("MONITOR: %w", err), conn.Close())
		}
		line, err := r.ReadString('\n')
		if err == nil && !strings.HasPrefix(line, "+OK") {
			err = errors.New(strings.TrimSpace(line))
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("MONITOR: %w", err), conn.Close())
		}
	}
	go m.read(r)
	return m, nil
}

// read counts until the connection is closed: +1700000000.123456 [0 127.0.0.1:1] "SET" ... A
// command of a script has "lua" as its address.
func (m *monitoring) read(r *bufio.Reader) {
	defer close(m.told)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			m.err = err
			return
		}
		_, rest, ok := strings.Cut(line, " [")
		source, command, ok2 := strings.Cut(rest, "] ")
		if !ok || !ok2 || strings.HasSuffix(source, " lua") {
			continue
		}
		if token, ok := strings.CutPrefix(command, `"ECHO" "`); ok {
			m.told <- strings.TrimRight(token, "\"\r\n")
			return
		}
		m.sum++
	}
}

// until returns the number of requests before the ECHO of the token.
func (m *monitoring) until(token string) (int64, error) {
	got, ok := <-m.told
	err := m.conn.Close()
	switch {
	case !ok:
		return 0, fmt.Errorf("MONITOR: %w", errors.Join(m.err, err))
	case got != token:
		return 0, errors.New("MONITOR: another client uses ECHO")
	case err != nil:
		return 0, fmt.Errorf("MONITOR: %w", err)
	}
	return m.sum, nil
}

// redisLoop is what people write by hand: SET NX PX, retried every 100 ms until it succeeds, and
// a script that deletes the key if it is still the caller's.
func redisLoop() bench.Contender {
	return bench.Contender{Name: "SET NX loop", Kind: bench.KindLoop, Can: bench.CanWait, Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		option, err := redisOption(cfg.URL)
		if err != nil {
			return nil, err
		}
		client, err := rueidis.NewClient(option)
		if err != nil {
			return nil, fmt.Errorf("connect: %w", err)
		}
		return &loopLocker{client: client, ttl: cfg.TTL, unlock: rueidis.NewLuaScript(unlockScript)}, nil
	}}
}

const (
	unlockScript = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`
	loopPause    = 100 * time.Millisecond
)

type loopLocker struct {
	client rueidis.Client
	ttl    time.Duration
	unlock *rueidis.Lua
}

func (l *loopLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	owner := rand.Text()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return bench.Held{}, context.Cause(ctx)
		}
		err := l.client.Do(ctx, l.client.B().Set().Key(name).Value(owner).Nx().PxMilliseconds(l.ttl.Milliseconds()).Build()).Error()
		switch {
		case err == nil:
			return bench.Held{Unlock: func(ctx context.Context) error { return l.release(ctx, name, owner) }}, nil
		case !rueidis.IsRedisNil(err):
			return bench.Held{}, fmt.Errorf("SET: %w", err)
		}
		timer.Reset(loopPause)
	}
}

func (l *loopLocker) release(ctx context.Context, name, owner string) error {
	n, err := l.unlock.Exec(ctx, l.client, []string{name}, []string{owner}).AsInt64()
	if err == nil && n == 0 {
		err = errors.New("it was not held any more")
	}
	return err
}

func (l *loopLocker) Close(context.Context) error {
	l.client.Close()
	return nil
}
