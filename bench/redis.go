package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

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
		Contenders: []bench.Contender{ours(), rawRedis(), overGoRedis(), redsyncOne(), bsmRedislock(), rueidisLock()},
		Close:      func() error { client.Close(); return nil },
	}
	info, err := client.Do(ctx, client.B().Info().Section("server").Build()).ToString()
	if err != nil {
		client.Close()
		return nil, &backend.UnavailableError{Backend: "redis", Op: "info", Err: err}
	}
	e.Version = infoField(info, "redis_version")
	if option.TLSConfig == nil && option.Password == "" { // the monitor has neither
		e.Meter = func(ctx context.Context) (func() (int64, error), error) { return meterRedis(ctx, client, option) }
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

// rawRedis is what every lock on Redis has to send at least, through the client library that redislock
// uses: SET NX PX, and the script that deletes the key if it has the value, which lock libraries have for
// that. A lock has no token and no queue, and the caller cannot wait: it is a limit, not a lock.
func rawRedis() bench.Contender {
	return bench.Contender{Name: "raw compare", Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		option, err := redisOption(cfg.URL)
		if err != nil {
			return nil, err
		}
		client, err := rueidis.NewClient(option)
		if err != nil {
			return nil, &backend.UnavailableError{Backend: "redis", Op: "connect", Err: err}
		}
		script := rueidis.NewLuaScript(`return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0`)
		return &rawRedisLocker{client: client, ttl: cfg.TTL.Milliseconds(), unlock: script}, nil
	}}
}

type rawRedisLocker struct {
	client rueidis.Client
	ttl    int64
	unlock *rueidis.Lua
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
	return bench.Held{Unlock: func(ctx context.Context) error {
		n, err := l.unlock.Exec(ctx, l.client, []string{name}, []string{value}).AsInt64()
		if err == nil && n != 1 {
			err = errors.New("the key had another value")
		}
		return err
	}}, nil
}

func (l *rawRedisLocker) Close(context.Context) error {
	l.client.Close()
	return nil
}

// meterRedis counts the requests with MONITOR, where the commands of scripts are marked.
func meterRedis(ctx context.Context, client rueidis.Client, option rueidis.ClientOption) (func() (int64, error), error) {
	m, err := monitor(ctx, option)
	if err != nil {
		return nil, err
	}
	return func() (int64, error) {
		// The commands after this one are not counted.
		token := string(backend.NewLeaseID())
		if err := client.Do(ctx, client.B().Echo().Message(token).Build()).Error(); err != nil {
			return 0, errors.Join(fmt.Errorf("ECHO: %w", err), m.conn.Close())
		}
		return m.until(token)
	}, nil
}

// monitoring is a connection on which the server reports every command.
type monitoring struct {
	conn net.Conn
	told chan string // tokens of ECHO, and "" at the end
	sum  int64       // requests before the token; read after told
	err  error
}

func monitor(ctx context.Context, option rueidis.ClientOption) (*monitoring, error) {
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
	if _, err := conn.Write([]byte("*1\r\n$7\r\nMONITOR\r\n")); err != nil {
		return nil, errors.Join(fmt.Errorf("MONITOR: %w", err), conn.Close())
	}
	line, err := r.ReadString('\n')
	if err == nil && !strings.HasPrefix(line, "+OK") {
		err = errors.New(strings.TrimSpace(line))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("MONITOR: %w", err), conn.Close())
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
