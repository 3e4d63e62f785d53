package redislock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// guides are the servers that know which server has the data.
type guides struct {
	hosts  []string
	option rueidis.ClientOption      // to reach them
	nodes  map[string]rueidis.Client // or the connections that there are
}

// reach returns a connection to one of them.
func (g *guides) reach(ctx context.Context, host string) (program.Conn, error) {
	if node := g.nodes[host]; node != nil {
		return program.NewConn(node, false), nil
	}
	client, err := newClient(ctx, bounded(ctx, secureFor(g.option, host)))
	if err != nil {
		return nil, err
	}
	return program.NewConn(client, true), nil
}

// each queries all of them concurrently and calls take with each answer, until take returns
// true.
func (g *guides) each(ctx context.Context, ask func(context.Context, program.Conn, string) (string, error), take func(string) bool) error {
	type said struct {
		text string
		err  error
	}
	answers := make(chan said, len(g.hosts))
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before the wait: one that is silent is not waited for
	for _, host := range g.hosts {
		asking.Go(func() {
			conn, err := g.reach(ctx, host)
			if err != nil {
				answers <- said{err: fmt.Errorf("%s: %w", host, err)}
				return
			}
			defer conn.Close()
			text, err := ask(ctx, conn, host)
			if err != nil {
				err = fmt.Errorf("%s: %w", host, err)
			}
			answers <- said{text, err}
		})
	}
	var errs []error
	refusals := 0
	for range g.hosts {
		select {
		case a := <-answers:
			if a.err != nil {
				errs = append(errs, a.err)
				if errors.Is(toKind("find", a.err), backend.ErrRefused) {
					refusals++
				}
			} else if take(a.text) {
				return nil
			}
		case <-ctx.Done():
			return &partialError{errors.Join(append(errs, context.Cause(ctx))...)}
		}
	}
	err := errors.Join(append(errs, errNobodyKnows)...)
	if refusals < len(g.hosts) {
		return &partialError{err}
	}
	return err
}

// partialError is the error of several servers. Some of them may refuse this client, but not all.
type partialError struct{ error }

func (e *partialError) Unwrap() error { return e.error }

// bounded makes the connection of a client end with ctx, also while it is being made.
func bounded(ctx context.Context, option rueidis.ClientOption) rueidis.ClientOption {
	dial := option.DialCtxFn
	option.DialCtxFn = func(_ context.Context, addr string, d *net.Dialer, secure *tls.Config) (net.Conn, error) {
		conn, err := dial(ctx, addr, d, secure)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = conn.Close() }) // the user of the connection gets the error
		}
		return conn, err
	}
	return option
}

var errNobodyKnows = errors.New("redis: none of the addresses reports which server has the data")

// findBySentinel queries all sentinels. More than half of them must name the same server: one
// that was cut off from the others may name the previous master.
func (g *guides) findBySentinel(master string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		votes, found := make(map[string]int), ""
		err := g.each(ctx, func(ctx context.Context, c program.Conn, _ string) (string, error) {
			r, err := c.Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", master)
			if err != nil {
				return "", err
			}
			if r.Kind != program.ListReply {
				return "", fmt.Errorf("the sentinel does not know the master %s", connect.Quote(master))
			}
			d := decode(r.List)
			return net.JoinHostPort(d.Text(), d.Text()), d.Err
		}, func(addr string) bool {
			votes[addr]++
			if votes[addr] > len(g.hosts)/2 {
				found = addr
			}
			return found != ""
		})
		return found, err
	}
}

// findInCluster requests a key: the owner of its slot answers, and the others name the owner.
func (g *guides) findInCluster(key string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		found := ""
		err := g.each(ctx, func(ctx context.Context, c program.Conn, host string) (string, error) {
			_, err := c.Do(ctx, "EXISTS", key)
			if err == nil {
				return host, nil
			}
			var refused *serverError
			if !errors.As(err, &refused) {
				return "", err
			}
			switch f := strings.Fields(refused.Text); {
			case refused.Code == "ASK" || refused.Code == "TRYAGAIN": // it still has the slot
				return host, nil
			case refused.Code == "MOVED" && len(f) == 3 && strings.HasPrefix(f[2], ":"): // on the same host
				return hostOf(host) + f[2], nil
			case refused.Code == "MOVED" && len(f) == 3:
				return f[2], nil
			}
			return "", err
		}, func(addr string) bool {
			found = addr
			return true
		})
		return found, err
	}
}
